package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

// reduceObey does what its first record says. conformance_reduce.py is the same in Python.
func reduceObey(_ context.Context, group udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
	var verb, rest string
	var first, last udf.Record
	count, size, headers, own := 0, 0, 0, map[string]bool{}
	for record := range records {
		if count == 0 {
			first = record
			verb, rest, _ = strings.Cut(string(record.Value), ":")
			if messages, done, err := order(verb, rest); done {
				return messages, err
			}
		}
		count++
		last = record
		size += len(record.Value)
		headers += len(record.Headers)
		for _, part := range record.Keys {
			own[part] = true
		}
	}
	return []udf.Message{{Value: fmt.Appendf(nil,
		"%d records, %d bytes, %d headers, %s %s, %d to %d early %d, %d to %d",
		count, size, headers, strings.Join(group.Keys, "/"), strings.Join(slices.Sorted(maps.Keys(own)), "/"),
		group.Start.UnixMicro(), group.End.UnixMicro(), group.Early, first.EventTime.UnixMicro(), last.EventTime.UnixMicro())}}, nil
}

// order: whether that was all there is to do.
func order(verb, rest string) ([]udf.Message, bool, error) {
	switch verb {
	case "fail":
		return nil, true, errors.New("failed: " + rest)
	case "panic":
		panic("panicked: " + rest)
	case "none":
		return nil, true, nil
	case "early":
		return []udf.Message{{Value: []byte("early")}}, true, nil
	case "dress":
		return []udf.Message{{
			Value:   []byte(rest),
			Keys:    []string{"new", "key"},
			Tags:    []string{"late", "red"},
			Headers: map[string][]byte{"colour": []byte("red")},
		}, {Value: []byte("plain")}}, true, nil
	case "many":
		n, err := strconv.Atoi(rest)
		messages := make([]udf.Message, n)
		for i := range messages {
			messages[i].Value = fmt.Appendf(nil, "%0100d", i)
		}
		return messages, true, err
	case "large":
		return []udf.Message{{Value: bytes.Repeat([]byte("x"), 8<<20)}}, true, nil
	case "exit":
		if file, err := os.OpenFile(rest, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			file.Close()
			os.Exit(9)
		}
	case "die":
		os.Exit(9)
	case "wait":
		if err := os.WriteFile(rest+".begun", nil, 0o600); err != nil {
			return nil, true, err
		}
		for {
			if _, err := os.Stat(rest); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil, false, nil
}
