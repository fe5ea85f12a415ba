// The functions of tests/contract/udf in Go, one for each argument; without one the map that does what its input says.
// conformance.py, conformance_reduce.py and served.py there are the same in Python.
package main

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

func obey(ctx context.Context, record udf.Record) ([]udf.Message, error) {
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
	case "panic":
		panic("panicked: " + rest)
	case "lines":
		return nil, errors.New("what happened\n\tat main.go:12\n\tat main.go:7")
	case "log":
		slog.WarnContext(ctx, rest, "order", 7)
		slog.Debug("for those who want to know")
		log.Print("by package log")
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
	case "end":
		// Every time.
		os.Exit(9)
	case "fatal":
		// A panic outside the function's own goroutine ends the process.
		go func() { panic("fatal: " + rest) }()
		select {}
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
	functions := map[string]*udf.Function{
		"":              udf.NewMap(obey),
		"reduce":        udf.NewReduce(reduceObey),
		"write":         udf.NewSinkFunc(write),
		"table":         udf.NewSink(func() udf.Sink { return &table{} }),
		"stamp":         udf.NewSourceTransform(stamp),
		"named":         udf.NewMap(named),
		"told":          udf.NewMap(told),
		"wait":          udf.NewMap(wait, udf.Concurrency(1000)),
		"leave":         udf.NewMap(leave, udf.Concurrency(4)),
		"Remember":      remember(),
		"RememberAsync": rememberConcurrently(),
		"Timers":        timers(1),
		"TimersAsync":   timers(4),
		"reminding":     reminding(),
		"totals":        totals(false),
		"picky":         totals(true),
		"Numbers":       udf.NewSource(func() udf.Source { return &numbers{} }),
	}
	name := strings.Join(os.Args[1:], " ")
	if functions[name] == nil {
		log.Fatalf("there is no function %q", name)
	}
	udf.Main(functions[name])
}
