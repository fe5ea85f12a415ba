package udf

import "millstream.io/examples/udf-go/wire/framev1"

// items cuts a column into its byte strings.
func items(column *framev1.BytesColumn) [][]byte {
	offsets, data := column.GetOffsets(), column.GetData()
	if len(offsets) == 0 {
		return nil
	}
	cut := make([][]byte, len(offsets)-1)
	for i := range cut {
		cut[i] = data[offsets[i]:offsets[i+1]]
	}
	return cut
}

// lists gives the byte strings of each of n records; nil for an absent column.
func lists(column *framev1.ListColumn, n int) [][]string {
	if column == nil {
		return make([][]string, n)
	}
	all := items(column.GetItems())
	out := make([][]string, n)
	for i := range out {
		first, last := uint32(i), uint32(i+1)
		if starts := column.GetStarts(); len(starts) > 0 {
			first, last = starts[i], starts[i+1]
		}
		for _, item := range all[first:last] {
			out[i] = append(out[i], string(item))
		}
	}
	return out
}

func headers(column *framev1.HeadersColumn, n int) []map[string][]byte {
	out := make([]map[string][]byte, n)
	if column == nil {
		return out
	}
	for i := range out {
		out[i] = map[string][]byte{}
		for at := column.GetStarts()[i]; at < column.GetStarts()[i+1]; at++ {
			out[i][column.GetNames()[at]] = column.GetValues()[at]
		}
	}
	return out
}

func bytesColumn(all [][]byte) *framev1.BytesColumn {
	column := &framev1.BytesColumn{Offsets: make([]uint32, 1, len(all)+1)}
	for _, item := range all {
		column.Data = append(column.Data, item...)
		column.Offsets = append(column.Offsets, uint32(len(column.Data)))
	}
	return column
}

func listColumn(all [][]string) *framev1.ListColumn {
	var flat [][]byte
	starts := []uint32{0}
	for _, list := range all {
		for _, item := range list {
			flat = append(flat, []byte(item))
		}
		starts = append(starts, uint32(len(flat)))
	}
	return &framev1.ListColumn{Starts: starts, Items: bytesColumn(flat)}
}

func headersColumn(all []map[string][]byte) *framev1.HeadersColumn {
	column := &framev1.HeadersColumn{Starts: []uint32{0}}
	for _, headers := range all {
		for name, value := range headers {
			column.Names = append(column.Names, name)
			column.Values = append(column.Values, value)
		}
		column.Starts = append(column.Starts, uint32(len(column.Names)))
	}
	return column
}
