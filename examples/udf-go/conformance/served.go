package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

// logged appends to the file that the test reads.
func logged(text []byte) error {
	file, err := os.OpenFile(os.Getenv("SERVED_LOG"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// write appends the record's id and value.
func write(_ context.Context, record udf.Record) error {
	if string(record.Value) == "bad" {
		return udf.Fallback{Reason: "not wanted"}
	}
	return logged(fmt.Appendf(nil, "%s %s\n", record.ID, record.Value))
}

// table does as write, a call at a time.
type table struct{ lines bytes.Buffer }

func (t *table) Open(context.Context) error { return nil }

func (t *table) Write(_ context.Context, record udf.Record) error {
	if string(record.Value) == "bad" {
		return udf.Fallback{Reason: "not wanted"}
	}
	fmt.Fprintf(&t.lines, "%s %s\n", record.ID, record.Value)
	return nil
}

func (t *table) Flush(context.Context) error {
	defer t.lines.Reset()
	return logged(t.lines.Bytes())
}

func (t *table) Close() error { return nil }

// stamp: the value is the event time.
func stamp(_ context.Context, record udf.Record) ([]udf.Message, error) {
	us, err := strconv.ParseInt(string(record.Value), 10, 64)
	return []udf.Message{{Value: record.Value, Keys: []string{"k"}, EventTime: time.UnixMicro(us)}}, err
}

// named gives the record's id.
func named(_ context.Context, record udf.Record) ([]udf.Message, error) {
	return []udf.Message{{Value: []byte(record.ID)}}, nil
}

// wait waits so many milliseconds.
func wait(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	ms, err := strconv.Atoi(string(record.Value))
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return []udf.Message{{Value: record.Value}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leave ends the process, once.
func leave(_ context.Context, record udf.Record) ([]udf.Message, error) {
	file, err := os.OpenFile(string(record.Value), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return []udf.Message{{Value: []byte("second")}}, nil
	}
	file.Close()
	os.Exit(3)
	return nil, nil
}

// numbers counts to 100 in every partition, and logs each call.
type numbers struct{ next int }

func (n *numbers) Open(_ context.Context, start udf.SourceStart) (err error) {
	if len(start.Position) > 0 {
		if n.next, err = strconv.Atoi(string(start.Position)); err != nil {
			return err
		}
	}
	return logged(fmt.Appendf(nil, "open %d %d %d\n", n.next, start.Partition, start.Partitions))
}

func (n *numbers) Read(_ context.Context, recordsMax int) (udf.Batch, error) {
	first := n.next
	n.next = min(first+recordsMax, 100)
	if first == 50 {
		failed, err := os.OpenFile(os.Getenv("SERVED_LOG")+".failed", os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			failed.Close()
			return udf.Batch{}, errors.New("the other side is away\nand more")
		}
	}
	batch := udf.Batch{Position: strconv.AppendInt(nil, int64(n.next), 10), Ended: n.next == 100}
	for number := first; number < n.next; number++ {
		value := strconv.AppendInt(nil, int64(number), 10)
		batch.Records = append(batch.Records, udf.Record{Value: value, EventTime: time.UnixMicro(int64(number))})
	}
	return batch, nil
}

func (n *numbers) Committed(_ context.Context, position []byte) error {
	return logged(fmt.Appendf(nil, "committed %s\n", position))
}

func (n *numbers) Close() error { return logged([]byte("close\n")) }
