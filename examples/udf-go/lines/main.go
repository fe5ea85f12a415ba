// A Millstream sink in Go: appends records to a file, a line each, and has them on disk before they count as written.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/millstream/millstream/sdk/go/udf"
)

type lines struct {
	path string
	file *os.File
	text *bufio.Writer
}

func (l *lines) Open(context.Context) (err error) {
	l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	l.text = bufio.NewWriter(l.file)
	return err
}

func (l *lines) Write(_ context.Context, record udf.Record) error {
	if bytes.ContainsRune(record.Value, '\n') {
		return udf.DeadLetter{Reason: "the value has several lines"}
	}
	// The id is the same at every attempt, so a reader can leave out what was written twice.
	_, err := fmt.Fprintf(l.text, "%s %s\n", record.ID, record.Value)
	return err
}

func (l *lines) Flush(context.Context) error {
	if err := l.text.Flush(); err != nil {
		return err
	}
	return l.file.Sync()
}

func (l *lines) Close() error { return l.file.Close() }

func main() {
	udf.Main(udf.NewSink(func() udf.Sink { return &lines{path: os.Getenv("LINES")} }))
}
