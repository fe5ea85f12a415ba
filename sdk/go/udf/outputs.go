package udf

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/framev1"
)

// packed are the columns of an answer. A column that no message needs is nil: it is absent, and its outputs inherit.
type packed struct {
	values       *framev1.BytesColumn
	keys, tags   *framev1.ListColumn
	headers      *framev1.HeadersColumn
	eventTimesUs []int64
}

// pack converts messages to columns; parent returns the record from which message i inherits.
func pack(messages []*Message, parent func(i int) *Record) packed {
	var some struct{ keys, tags, headers, times bool }
	for _, message := range messages {
		some.keys = some.keys || message.Keys != nil
		some.tags = some.tags || len(message.Tags) > 0
		some.headers = some.headers || message.Headers != nil
		some.times = some.times || !message.EventTime.IsZero()
	}
	out := packed{values: columns.Pack(len(messages), func(i int) []byte { return messages[i].Value })}
	if some.keys {
		keys := make([][]string, len(messages))
		for i, message := range messages {
			if keys[i] = message.Keys; keys[i] == nil {
				keys[i] = parent(i).Keys
			}
		}
		out.keys = columns.PackLists(keys)
	}
	if some.tags {
		tags := make([][]string, len(messages))
		for i, message := range messages {
			tags[i] = message.Tags
		}
		out.tags = columns.PackLists(tags)
	}
	if some.headers {
		headers := make([]map[string][]byte, len(messages))
		for i, message := range messages {
			if headers[i] = message.Headers; headers[i] == nil {
				headers[i] = parent(i).Headers
			}
		}
		out.headers = columns.PackHeaders(headers)
	}
	if some.times {
		out.eventTimesUs = make([]int64, len(messages))
		for i, message := range messages {
			eventTime := message.EventTime
			if eventTime.IsZero() {
				eventTime = parent(i).EventTime
			}
			out.eventTimesUs[i] = eventTime.UnixMicro()
		}
	}
	return out
}

// timerFault reports why messages of a timer cannot be sent.
func timerFault(messages []Message, earliest time.Time) error {
	for i := range messages {
		if at := messages[i].EventTime; !at.IsZero() && at.UnixMicro() < earliest.UnixMicro() {
			return fmt.Errorf("an output of the timer is %v earlier than its EventTime: set the timer with udf.OutputAt, "+
				"the earliest event time of its outputs", earliest.Sub(at))
		}
	}
	return fault(messages, true)
}

// fault reports why messages cannot be sent.
func fault(messages []Message, timesAllowed bool) error {
	for i := range messages {
		message := &messages[i]
		if !timesAllowed && !message.EventTime.IsZero() {
			return errors.New("only a source transform can set event times, because the watermark is computed after it")
		}
		if err := textFault(message.Keys, message.Tags, message.Headers); err != nil {
			return err
		}
	}
	return nil
}

func textFault(keys, tags []string, headers map[string][]byte) error {
	for _, key := range keys {
		if !utf8.ValidString(key) {
			return fmt.Errorf("the key %q is not UTF-8", key)
		}
	}
	for _, tag := range tags {
		if !utf8.ValidString(tag) {
			return fmt.Errorf("the tag %q is not UTF-8", tag)
		}
	}
	for name := range headers {
		if !utf8.ValidString(name) {
			return fmt.Errorf("the header name %q is not UTF-8", name)
		}
	}
	return nil
}
