// The function of tests/contract/udf in Go: it does what its input says. conformance.py there is the same in Python. With
// the argument "reduce" it is the reduce function.
package main

import (
	"bytes"
	"errors"
	"log"
	"os"
	"strings"
	"time"

	"millstream.io/examples/udf-go/udf"
)

func obey(record udf.Record) ([]udf.Message, error) {
	value := string(record.Value)
	verb, rest, _ := strings.Cut(value, ":")
	switch verb {
	case "none":
		return nil, nil
	case "split":
		var out []udf.Message
		for _, part := range strings.Split(rest, ",") {
			out = append(out, udf.Message{Value: []byte(part)})
		}
		return out, nil
	case "dress":
		return []udf.Message{{
			Value:   []byte(rest),
			Keys:    []string{"new", "key"},
			Tags:    []string{"late", "red"},
			Headers: map[string][]byte{"colour": []byte("red")},
		}}, nil
	case "fail":
		return nil, errors.New("failed: " + rest)
	case "retry":
		return nil, udf.Retry{Delay: 250 * time.Millisecond}
	case "dead":
		return nil, udf.DeadLetter{Reason: rest}
	case "drop":
		return nil, udf.Drop{Reason: rest}
	case "large":
		return []udf.Message{{Value: bytes.Repeat([]byte("x"), 100<<20)}}, nil
	case "exit":
		// Once: the file says that it has.
		if file, err := os.OpenFile(rest, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			file.Close()
			os.Exit(9)
		}
	case "wait":
		// Tells that it has begun, and fails if it has begun before.
		begun, err := os.OpenFile(rest+".begun", os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		begun.Close()
		for {
			if _, err := os.Stat(rest); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return []udf.Message{{Value: bytes.ToUpper(record.Value)}}, nil
}

func main() {
	serve := func() error { return udf.Serve(obey) }
	if len(os.Args) > 1 && os.Args[1] == "reduce" {
		serve = func() error { return udf.ServeReduce(reduceObey) }
	}
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}
