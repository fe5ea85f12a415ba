// A Millstream function in Go: splits each line into words, in upper case, keyed by the word.
package main

import (
	"bytes"
	"context"

	"github.com/millstream/millstream/sdk/go/udf"
)

func words(_ context.Context, record udf.Record) ([]udf.Message, error) {
	var out []udf.Message
	for _, word := range bytes.Fields(record.Value) {
		word = bytes.ToUpper(word)
		out = append(out, udf.Message{Value: word, Keys: []string{string(word)}})
	}
	return out, nil
}

func main() { udf.Main(udf.NewMap(words)) }
