package udf

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// migration makes the bytes of a value of the next version.
type migration struct {
	from, to string
	convert  func([]byte) ([]byte, error)
}

type makeMigration func(*stateOptions) migration

// values is a state with values of a type.
type values[T any] struct {
	declared
	codec      codec[T]
	migrations map[uint32]migration
}

func declareValues[T any](
	name string, kind udfv1.State_Kind, itemCodec string, options []StateOption,
) (values[T], *stateOptions) {
	state := values[T]{}
	var chosen *stateOptions
	state.declared, chosen = declare(name, kind, "", itemCodec, options)
	state.codec = codecOf[T](chosen)
	state.Codec = state.codec.name
	if chosen.version < 1 || int64(chosen.version) >= 1<<32 {
		state.refuse("the version of state %s must be a whole number of at least 1, not %d", name, chosen.version)
		return state, chosen
	}
	state.Version = uint32(chosen.version)
	state.Oldest = state.Version - min(state.Version-1, uint32(len(chosen.migrations)))
	state.migrations = map[uint32]migration{}
	for _, version := range slices.Sorted(maps.Keys(chosen.migrations)) {
		step := chosen.migrations[version](chosen)
		if version < int(state.Oldest) || version >= chosen.version {
			state.refuse("state %s has a step from version %d; version %d needs them from one version to the next, the "+
				"last one from %d", name, version, chosen.version, chosen.version-1)
			continue
		}
		isProtobuf := state.Codec == protobufName
		for _, codec := range []string{step.from, step.to} {
			if codec != state.Codec && !(isProtobuf && codec == bytesName) {
				state.refuse("the step from version %d of state %s converts values of %s, and the state has %s", version, name,
					codec, state.Codec)
			}
		}
		state.migrations[uint32(version)] = step
	}
	return state, chosen
}

// read converts a stored value.
func (v *values[T]) read(data []byte, version uint32) (T, error) {
	var zero T
	if version != v.Version {
		if err := v.CheckVersion(version); err != nil {
			return zero, err
		}
		for ; version < v.Version; version++ {
			var err error
			if data, err = v.migrations[version].convert(data); err != nil {
				return zero, fmt.Errorf("a stored value of state %s cannot be converted from version %d: %w", v.Name, version,
					err)
			}
		}
	}
	value, err := v.codec.read(data)
	if err != nil {
		return zero, fmt.Errorf("a stored value of state %s cannot be read: %w", v.Name, err)
	}
	return value, nil
}

// write returns the bytes of a value.
func (v *values[T]) write(value T) ([]byte, error) {
	data, err := v.codec.write(value)
	if err != nil {
		return nil, fmt.Errorf("state %s: a %T cannot be stored as %s: %w", v.Name, value, v.Codec, err)
	}
	return data, nil
}

// lookup returns the value of an item, and whether there is one.
func (v *values[T]) lookup(ctx context.Context, item []byte) (value T, stored bool, err error) {
	data, version, err := v.get(ctx, item)
	if err != nil || data == nil {
		return value, false, err
	}
	value, err = v.read(data, version)
	return value, err == nil, err
}

// set stores the value of an item.
func (v *values[T]) set(ctx context.Context, item []byte, value T) error {
	data, err := v.write(value)
	if err != nil {
		return err
	}
	return v.put(ctx, item, data)
}

// ValueState is one value for each key.
type ValueState[T any] struct {
	values[T]
	// byDefault is the encoded default; nil: the zero value.
	byDefault []byte
}

// NewValueState declares a value. A []byte is stored as it is, a message of protobuf as such, and anything else as JSON,
// with the names that encoding/json gives its fields.
func NewValueState[T any](name string, options ...StateOption) *ValueState[T] {
	state := &ValueState[T]{}
	state.values, _ = declareValues[T](name, udfv1.State_KIND_VALUE, "", options)
	return state
}

// WithDefault sets what Get returns where nothing is stored, instead of the zero value. It returns the state.
func (s *ValueState[T]) WithDefault(value T) *ValueState[T] {
	data, err := s.write(value)
	if err != nil {
		s.refuse("the default cannot be a value: %w", err)
	}
	s.byDefault = data
	return s
}

// Get returns the value, or the default if nothing is stored. The result is the caller's own: what is changed in it
// counts only after Set.
func (s *ValueState[T]) Get(ctx context.Context) (T, error) {
	value, stored, err := s.lookup(ctx, nil)
	if err == nil && !stored && s.byDefault != nil {
		return s.codec.read(s.byDefault)
	}
	return value, err
}

// Lookup returns the value, and whether one is stored. It knows no default.
func (s *ValueState[T]) Lookup(ctx context.Context) (value T, stored bool, err error) {
	return s.lookup(ctx, nil)
}

// Set stores a value. What is changed in it afterwards does not count.
func (s *ValueState[T]) Set(ctx context.Context, value T) error { return s.set(ctx, nil, value) }

// Delete deletes the value, if there is one.
func (s *ValueState[T]) Delete(ctx context.Context) error { return s.put(ctx, nil, nil) }
