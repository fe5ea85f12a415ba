package udf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/framev1"
)

// recordsOf reads a frame that has come by an edge. Ids are prefix and the index from first on, unless the frame has its own. The records are
// stored in `into` if they fit; they refer to the frame's memory, or to new memory.
func recordsOf(
	frame *framev1.Frame, edge, prefix string, first uint32, into []Record,
) (records []Record, err error) {
	defer func() {
		if value := recover(); value != nil {
			records, err = nil, fmt.Errorf("the frame cannot be read: %v", value)
		}
	}()
	offsets, data, times := frame.GetValues().GetOffsets(), frame.GetValues().GetData(), frame.GetEventTimesUs()
	records = slices.Grow(into[:0], max(0, len(offsets)-1))[:max(0, len(offsets)-1)]
	for i := range records {
		// Appending to a value must not overwrite the next.
		value := data[offsets[i]:offsets[i+1]:offsets[i+1]]
		records[i] = Record{Value: value, EventTime: time.UnixMicro(times[i]).UTC(), Edge: edge}
	}
	if frame.GetKeys() != nil {
		for i, keys := range columns.Lists(frame.GetKeys()) {
			records[i].Keys = keys
		}
	}
	if column := frame.GetHeaders(); column != nil {
		for i := range records {
			records[i].Headers = columns.Headers(column, i)
		}
	}
	if frame.GetIds() != nil {
		for i, id := range columns.Texts(frame.GetIds()) {
			records[i].ID = id
		}
	} else if prefix != "" {
		number(records, prefix, first)
	}
	return records, nil
}

// frameOf packs the records of a source, at least one.
func frameOf(records []Record) *framev1.Frame {
	frame := &framev1.Frame{Info: &framev1.FrameInfo{Records: uint32(len(records))}}
	values, times := make([][]byte, len(records)), make([]int64, len(records))
	keys, headers := make([][]string, len(records)), make([]map[string][]byte, len(records))
	ids := make([][]byte, len(records))
	var some struct{ keys, headers, ids bool }
	for i, record := range records {
		values[i], keys[i], headers[i], ids[i] = record.Value, record.Keys, record.Headers, []byte(record.ID)
		if !record.EventTime.IsZero() {
			times[i] = record.EventTime.UnixMicro()
		}
		some.keys = some.keys || len(record.Keys) > 0
		some.headers = some.headers || len(record.Headers) > 0
		some.ids = some.ids || record.ID != ""
		if i == 0 || times[i] < frame.Info.EventTimeMinUs {
			frame.Info.EventTimeMinUs = times[i]
		}
		if i == 0 || times[i] > frame.Info.EventTimeMaxUs {
			frame.Info.EventTimeMaxUs = times[i]
		}
	}
	frame.Values, frame.EventTimesUs = columns.PackItems(values), times
	if some.keys {
		frame.Keys = columns.PackLists(keys)
	}
	if some.headers {
		frame.Headers = columns.PackHeaders(headers)
	}
	if some.ids {
		frame.Ids = columns.PackItems(ids)
	}
	return frame
}

// number sets each record's id from its index. The ids share one string, which takes a tenth of the time.
func number(records []Record, prefix string, first uint32) {
	last := uint64(first) + uint64(len(records))
	var text strings.Builder
	text.Grow(len(records) * (len(prefix) + len(strconv.FormatUint(last, 10))))
	digits := make([]byte, 0, 20)
	for i := range records {
		begin := text.Len()
		digits = strconv.AppendUint(digits[:0], uint64(first)+uint64(i), 10)
		text.WriteString(prefix)
		text.Write(digits)
		// The buffer does not move, because it has space for all ids.
		records[i].ID = text.String()[begin:]
	}
}
