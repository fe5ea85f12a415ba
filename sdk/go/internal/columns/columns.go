// Package columns packs byte strings, texts and headers into the columns of frames and answers, and cuts them again.
package columns

import "github.com/millstream/millstream/sdk/go/internal/wire/framev1"

// Items cuts a column into its byte strings.
func Items(column *framev1.BytesColumn) [][]byte {
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

// Lists gives the texts of each record.
func Lists(column *framev1.ListColumn) [][]string {
	all := Items(column.GetItems())
	texts := make([]string, len(all))
	for i, item := range all {
		texts[i] = string(item)
	}
	n := len(all)
	if starts := column.GetStarts(); len(starts) > 0 {
		n = len(starts) - 1
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

// Headers are those of record i.
func Headers(column *framev1.HeadersColumn, i int) map[string][]byte {
	headers := map[string][]byte{}
	for at := column.GetStarts()[i]; at < column.GetStarts()[i+1]; at++ {
		headers[column.GetNames()[at]] = column.GetValues()[at]
	}
	return headers
}

// PackItems is the inverse of Items.
func PackItems(all [][]byte) *framev1.BytesColumn {
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

// PackLists is the inverse of Lists.
func PackLists(all [][]string) *framev1.ListColumn {
	var flat [][]byte
	starts := make([]uint32, 1, len(all)+1)
	for _, list := range all {
		for _, item := range list {
			flat = append(flat, []byte(item))
		}
		starts = append(starts, uint32(len(flat)))
	}
	return &framev1.ListColumn{Starts: starts, Items: PackItems(flat)}
}

// PackHeaders packs the headers of each record.
func PackHeaders(all []map[string][]byte) *framev1.HeadersColumn {
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
