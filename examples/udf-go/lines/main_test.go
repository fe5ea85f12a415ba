package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	sink := udf.NewSink(func() udf.Sink { return &lines{path: path} })
	results := udftest.Write(t, sink, udftest.Values("a", "b\nc", "d")...)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != "test/in-test/0/1/0 a\ntest/in-test/0/1/2 d\n" {
		t.Errorf("%s", text)
	}
	if len(results.Outcomes) != 1 || results.Outcomes[0].Result != "dead letter" {
		t.Error(results.Outcomes)
	}
}
