package udf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

const (
	jsonName        = "json"
	bytesName       = "bytes"
	protobufName    = "protobuf"
	messagePackName = "msgpack"
)

// codec converts values of a type to bytes. What write returns and what read returns is new memory. A value that is
// stored is never nil.
type codec[T any] struct {
	name  string
	write func(T) ([]byte, error)
	read  func([]byte) (T, error)
}

// codecOf returns the codec that goes with a type.
func codecOf[T any](options *stateOptions) codec[T] {
	var zero T
	if options.marshal != nil {
		return codec[T]{
			messagePackName,
			func(value T) ([]byte, error) { return options.marshal(value) },
			func(data []byte) (value T, err error) { err = options.unmarshal(data, &value); return value, err },
		}
	}
	if _, isBytes := any(zero).([]byte); isBytes {
		clone := func(data []byte) []byte { return append(make([]byte, 0, len(data)), data...) }
		return codec[T]{
			bytesName,
			func(value T) ([]byte, error) { return clone(any(value).([]byte)), nil },
			func(data []byte) (T, error) { return any(clone(data)).(T), nil },
		}
	}
	if message, isMessage := any(zero).(proto.Message); isMessage {
		return codec[T]{
			protobufName,
			writeProtobuf[T],
			func(data []byte) (T, error) {
				value := message.ProtoReflect().New().Interface()
				return value.(T), proto.Unmarshal(data, value)
			},
		}
	}
	return codec[T]{
		jsonName,
		func(value T) ([]byte, error) {
			data, err := writeJSON(value)
			// Of what is not UTF-8, encoding/json makes this, which is the text of a value only if that is JSON itself.
			if bytes.Contains(data, []byte(`\ufffd`)) && hasInvalidText(reflect.ValueOf(value)) {
				return nil, errors.New("a text in it is not UTF-8")
			}
			return data, err
		},
		func(data []byte) (value T, err error) { err = json.Unmarshal(data, &value); return value, err },
	}
}

func writeProtobuf[T any](value T) ([]byte, error) {
	message := any(value).(proto.Message)
	if !message.ProtoReflect().IsValid() {
		return nil, errors.New("it is nil")
	}
	// Otherwise the same map may become other bytes, which would count as a change.
	data, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{}, message)
	return data, err
}

// writeJSON writes as encoding/json does, and escapes no more than JSON needs, as the SDK for Python: the same text is
// then the same bytes.
func writeJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return withSeparators(bytes.TrimSuffix(text.Bytes(), []byte("\n"))), nil
}

// hasInvalidText: whether a text in a value, of what encoding/json writes of it, is not UTF-8.
func hasInvalidText(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.String:
		return !utf8.ValidString(value.String())
	case reflect.Pointer, reflect.Interface:
		return !value.IsNil() && hasInvalidText(value.Elem())
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if hasInvalidText(value.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for entries := value.MapRange(); entries.Next(); {
			if hasInvalidText(entries.Key()) || hasInvalidText(entries.Value()) {
				return true
			}
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if field := value.Type().Field(i); (field.IsExported() || field.Anonymous) && hasInvalidText(value.Field(i)) {
				return true
			}
		}
	}
	return false
}

// withSeparators writes U+2028 and U+2029 as they are, which encoding/json always escapes.
func withSeparators(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u202`)) {
		return text
	}
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		size := 1
		if text[0] == '\\' {
			size = 2
		}
		switch {
		case bytes.HasPrefix(text, []byte(`\u2028`)):
			out, size = append(out, "\u2028"...), 6
		case bytes.HasPrefix(text, []byte(`\u2029`)):
			out, size = append(out, "\u2029"...), 6
		default:
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}

// Item is a type that the items of a map state can have.
type Item interface {
	~string | ~[]byte | ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// itemCodec is as codec. Two encodings of one item would be two items: so there is one for each, in every language.
type itemCodec[K Item] struct {
	name  string
	write func(K) ([]byte, error)
	read  func([]byte) (K, error)
}

func itemCodecOf[K Item]() itemCodec[K] {
	kind := reflect.TypeFor[K]().Kind()
	switch {
	case kind == reflect.Slice:
		return itemCodec[K]{
			bytesName,
			func(item K) ([]byte, error) { return reflect.ValueOf(item).Bytes(), nil },
			func(data []byte) (item K, err error) {
				reflect.ValueOf(&item).Elem().SetBytes(bytes.Clone(data))
				return item, nil
			},
		}
	case kind == reflect.String:
		return itemCodec[K]{jsonName, writeTextItem[K], readTextItem[K]}
	case kind >= reflect.Uint:
		return itemCodec[K]{
			jsonName,
			func(item K) ([]byte, error) { return strconv.AppendUint(nil, reflect.ValueOf(item).Uint(), 10), nil },
			func(data []byte) (item K, err error) {
				number, err := strconv.ParseUint(string(data), 10, reflect.TypeFor[K]().Bits())
				reflect.ValueOf(&item).Elem().SetUint(number)
				return item, err
			},
		}
	}
	return itemCodec[K]{
		jsonName,
		func(item K) ([]byte, error) { return strconv.AppendInt(nil, reflect.ValueOf(item).Int(), 10), nil },
		func(data []byte) (item K, err error) {
			number, err := strconv.ParseInt(string(data), 10, reflect.TypeFor[K]().Bits())
			reflect.ValueOf(&item).Elem().SetInt(number)
			return item, err
		},
	}
}

func writeTextItem[K Item](item K) ([]byte, error) {
	text := reflect.ValueOf(item).String()
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the item %q is not UTF-8", text)
	}
	// Not `item`, whose type may have an encoding of its own.
	return writeJSON(text)
}

func readTextItem[K Item](data []byte) (item K, err error) {
	var text string
	err = json.Unmarshal(data, &text)
	reflect.ValueOf(&item).Elem().SetString(text)
	return item, err
}
