// A Millstream sink in Go that keeps positions: a file of JSON that is replaced as a whole, so that records and positions
// change together. Each record is in it exactly once.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/millstream/millstream/sdk/go/udf"
)

// contents is what the file has.
type contents struct {
	Lanes map[string]lane `json:"lanes"`
	Lines []string        `json:"lines"`
}

type lane struct {
	Epoch    uint64 `json:"epoch"`
	Position []byte `json:"position"`
}

type book struct {
	path  string
	lane  udf.SinkLane
	lines []string
}

func (b *book) Open(_ context.Context, opened udf.SinkLane) (position []byte, err error) {
	b.lane = opened
	err = b.change(func(all *contents) error {
		found := all.Lanes[opened.Name]
		position = found.Position
		if found.Epoch >= opened.Epoch {
			return udf.ErrFenced
		}
		all.Lanes[opened.Name] = lane{opened.Epoch, position}
		return nil
	})
	return position, err
}

func (b *book) Check(_ context.Context, record udf.Record) error {
	if bytes.ContainsRune(record.Value, '\n') {
		return udf.DeadLetter{Reason: "the value has several lines"}
	}
	return nil
}

func (b *book) Write(_ context.Context, record udf.Record) error {
	b.lines = append(b.lines, string(record.Value))
	return nil
}

func (b *book) Flush(_ context.Context, position []byte) error {
	err := b.change(func(all *contents) error {
		if all.Lanes[b.lane.Name].Epoch != b.lane.Epoch {
			return udf.ErrFenced
		}
		all.Lanes[b.lane.Name] = lane{b.lane.Epoch, position}
		all.Lines = append(all.Lines, b.lines...)
		return nil
	})
	b.lines = nil
	return err
}

func (b *book) Close() error { return nil }

// change replaces the file while no other owner does.
func (b *book) change(edit func(*contents) error) error {
	lock, err := os.OpenFile(b.path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	all := contents{Lanes: map[string]lane{}, Lines: []string{}}
	data, err := os.ReadFile(b.path)
	if err == nil {
		err = json.Unmarshal(data, &all)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = edit(&all)
	}
	if err != nil {
		return err
	}
	if data, err = json.Marshal(all); err != nil {
		return err
	}
	return replace(b.path, data)
}

// replace makes data the contents of a file, durably.
func replace(path string, data []byte) error {
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

func main() {
	udf.Main(udf.NewPositionSink(func() udf.PositionSink { return &book{path: os.Getenv("BOOK")} }))
}
