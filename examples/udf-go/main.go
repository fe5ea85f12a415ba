// A Millstream function in Go: splits each line into words, in upper case, keyed by the word.
package main

import (
	"bytes"
	"log"

	"millstream.io/examples/udf-go/udf"
)

func words(record udf.Record) ([]udf.Message, error) {
	var out []udf.Message
	for _, word := range bytes.Fields(record.Value) {
		word = bytes.ToUpper(word)
		out = append(out, udf.Message{Value: word, Keys: []string{string(word)}})
	}
	return out, nil
}

func main() {
	if err := udf.Serve(words); err != nil {
		log.Fatal(err)
	}
}
