package udf

import (
	"fmt"
	"strconv"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/framev1"
)

// recordsOf reads a frame. Ids are prefix and the index from first on, unless the frame has its own.
func recordsOf(frame *framev1.Frame, prefix string, first uint32) (records []Record, err error) {
	defer func() {
		if value := recover(); value != nil {
			records, err = nil, fmt.Errorf("the frame cannot be read: %v", value)
		}
	}()
	values, times := columns.Items(frame.GetValues()), frame.GetEventTimesUs()
	records = make([]Record, len(values))
	for i := range records {
		records[i].Value, records[i].EventTime = values[i], time.UnixMicro(times[i]).UTC()
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
		for i, id := range columns.Items(frame.GetIds()) {
			records[i].ID = string(id)
		}
	} else if prefix != "" {
		number(records, prefix, first)
	}
	return records, nil
}

// frameOf packs the records of a source. There is at least one.
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

// number gives each record its place as id. They share one string: that is a tenth of the time.
func number(records []Record, prefix string, first uint32) {
	text := make([]byte, 0, len(records)*(len(prefix)+5))
	ends := make([]int, len(records))
	for i := range records {
		text = append(text, prefix...)
		text = strconv.AppendUint(text, uint64(first)+uint64(i), 10)
		ends[i] = len(text)
	}
	all, begin := string(text), 0
	for i, end := range ends {
		records[i].ID = all[begin:end]
		begin = end
	}
}
