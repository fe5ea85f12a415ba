// Package columns packs byte strings, texts and headers into the columns of frames and answers, and unpacks them.
package columns

import "github.com/millstream/millstream/sdk/go/internal/wire/framev1"

// Items returns the byte strings of a column.
func Items(column *framev1.BytesColumn) [][]byte {
	offsets, data := column.GetOffsets(), column.GetData()
	if len(offsets) == 0 {
		return nil
	}
	cut := make([][]byte, len(offsets)-1)
	for i := range cut {
		// Appending to an item must not overwrite the next.
		cut[i] = data[offsets[i]:offsets[i+1]:offsets[i+1]]
	}
	return cut
}

// Texts is Items with strings, which share memory.
func Texts(column *framev1.BytesColumn) []string {
	offsets := column.GetOffsets()
	if len(offsets) == 0 {
		return nil
	}
	all := string(column.GetData())
	cut := make([]string, len(offsets)-1)
	for i := range cut {
		cut[i] = all[offsets[i]:offsets[i+1]]
	}
	return cut
}

// Lists returns the texts of each record.
func Lists(column *framev1.ListColumn) [][]string {
	texts, starts := Texts(column.GetItems()), column.GetStarts()
	if len(starts) == 0 {
		out := make([][]string, len(texts))
		for i := range out {
			out[i] = texts[i : i+1 : i+1]
		}
		return out
	}
	out := make([][]string, len(starts)-1)
	for i := range out {
		out[i] = texts[starts[i]:starts[i+1]:starts[i+1]]
	}
	return out
}

// Headers returns the headers of record i; nil if it has none.
func Headers(column *framev1.HeadersColumn, i int) map[string][]byte {
	starts, names, values := column.GetStarts(), column.GetNames(), column.GetValues()
	if starts[i] == starts[i+1] {
		return nil
	}
	headers := make(map[string][]byte, starts[i+1]-starts[i])
	for at := starts[i]; at < starts[i+1]; at++ {
		headers[names[at]] = values[at]
	}
	return headers
}

// PackItems is the inverse of Items and of Texts.
func PackItems[Item []byte | string](all []Item) *framev1.BytesColumn {
	return Pack(len(all), func(i int) Item { return all[i] })
}

// Pack is PackItems for the results of item for 0 to n-1.
func Pack[Item []byte | string](n int, item func(i int) Item) *framev1.BytesColumn {
	size := 0
	for i := range n {
		size += len(item(i))
	}
	column := &framev1.BytesColumn{Offsets: make([]uint32, 1, n+1), Data: make([]byte, 0, size)}
	for i := range n {
		column.Data = append(column.Data, item(i)...)
		column.Offsets = append(column.Offsets, uint32(len(column.Data)))
	}
	return column
}

// PackLists is the inverse of Lists.
func PackLists(all [][]string) *framev1.ListColumn {
	flat := make([]string, 0, len(all))
	starts := make([]uint32, 1, len(all)+1)
	for _, list := range all {
		flat = append(flat, list...)
		starts = append(starts, uint32(len(flat)))
	}
	return &framev1.ListColumn{Starts: starts, Items: PackItems(flat)}
}

// PackHeaders packs the headers of each record.
func PackHeaders(all []map[string][]byte) *framev1.HeadersColumn {
	size := 0
	for _, headers := range all {
		size += len(headers)
	}
	column := &framev1.HeadersColumn{
		Starts: make([]uint32, 1, len(all)+1), Names: make([]string, 0, size), Values: make([][]byte, 0, size),
	}
	for _, headers := range all {
		for name, value := range headers {
			column.Names = append(column.Names, name)
			column.Values = append(column.Values, value)
		}
		column.Starts = append(column.Starts, uint32(len(column.Names)))
	}
	return column
}
