package udf

import (
	"fmt"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/wire/framev1"
)

// items cuts a column into its byte strings.
func items(column *framev1.BytesColumn) [][]byte {
	offsets, data := column.GetOffsets(), column.GetData()
	if len(offsets) == 0 {
		return nil
	}
	cut := make([][]byte, len(offsets)-1)
	for i := range cut {
		// Appending to one must not write into the next.
		cut[i] = data[offsets[i]:offsets[i+1]:offsets[i+1]]
	}
	return cut
}

// recordsOf reads a frame. Ids are prefix and the index from first on, unless the frame has its own.
func recordsOf(frame *framev1.Frame, prefix string, first uint32) (records []Record, err error) {
	defer func() {
		if value := recover(); value != nil {
			records, err = nil, fmt.Errorf("the frame cannot be read: %v", value)
		}
	}()
	values, times := items(frame.GetValues()), frame.GetEventTimesUs()
	records = make([]Record, len(values))
	for i := range records {
		records[i].Value, records[i].EventTime = values[i], time.UnixMicro(times[i]).UTC()
	}
	if frame.GetKeys() != nil {
		for i, keys := range lists(frame.GetKeys(), len(records)) {
			records[i].Keys = keys
		}
	}
	if column := frame.GetHeaders(); column != nil {
		for i := range records {
			records[i].Headers = headersOf(column, i)
		}
	}
	if frame.GetIds() != nil {
		for i, id := range items(frame.GetIds()) {
			records[i].ID = string(id)
		}
	} else if prefix != "" {
		for i := range records {
			records[i].ID = fmt.Sprint(prefix, first+uint32(i))
		}
	}
	return records, nil
}

// lists gives the byte strings of each of n records.
func lists(column *framev1.ListColumn, n int) [][]string {
	all := items(column.GetItems())
	texts := make([]string, len(all))
	for i, item := range all {
		texts[i] = string(item)
	}
	out := make([][]string, n)
	for i := range out {
		first, last := uint32(i), uint32(i+1)
		if starts := column.GetStarts(); len(starts) > 0 {
			first, last = starts[i], starts[i+1]
		}
		out[i] = texts[first:last:last]
	}
	return out
}

func headersOf(column *framev1.HeadersColumn, i int) map[string][]byte {
	headers := map[string][]byte{}
	for at := column.GetStarts()[i]; at < column.GetStarts()[i+1]; at++ {
		headers[column.GetNames()[at]] = column.GetValues()[at]
	}
	return headers
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
	frame.Values, frame.EventTimesUs = bytesColumn(values), times
	if some.keys {
		frame.Keys = listColumn(keys)
	}
	if some.headers {
		frame.Headers = headersColumn(headers)
	}
	if some.ids {
		frame.Ids = bytesColumn(ids)
	}
	return frame
}

func bytesColumn(all [][]byte) *framev1.BytesColumn {
	size := 0
	for _, item := range all {
		size += len(item)
	}
	column := &framev1.BytesColumn{Offsets: make([]uint32, 1, len(all)+1), Data: make([]byte, 0, size)}
	for _, item := range all {
		column.Data = append(column.Data, item...)
		column.Offsets = append(column.Offsets, uint32(len(column.Data)))
	}
	return column
}

func listColumn(all [][]string) *framev1.ListColumn {
	var flat [][]byte
	starts := make([]uint32, 1, len(all)+1)
	for _, list := range all {
		for _, item := range list {
			flat = append(flat, []byte(item))
		}
		starts = append(starts, uint32(len(flat)))
	}
	return &framev1.ListColumn{Starts: starts, Items: bytesColumn(flat)}
}

func headersColumn(all []map[string][]byte) *framev1.HeadersColumn {
	column := &framev1.HeadersColumn{Starts: make([]uint32, 1, len(all)+1)}
	for _, headers := range all {
		for name, value := range headers {
			column.Names = append(column.Names, name)
			column.Values = append(column.Values, value)
		}
		column.Starts = append(column.Starts, uint32(len(column.Names)))
	}
	return column
}
