package udf

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

func lineOf(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var line map[string]any
	if err := json.Unmarshal(text, &line); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if _, ok := line["time"].(string); !ok {
		t.Errorf("no time in %s", text)
	}
	delete(line, "time")
	return line
}

func TestALineHasTheFieldsOfItsCallBesideTheMessage(t *testing.T) {
	var written bytes.Buffer
	logger := slog.New(NewLogHandler(&written, slog.LevelInfo)).With("shop", "a").WithGroup("order")
	ctx := withCall(context.Background(), &udfv1.Hello{Lane: "in-map.0"}, Call{Attempt: 2, Traceparent: "00-ab-cd-01"})
	logger.WarnContext(ctx, "7 is late", "number", 7)
	want := map[string]any{
		"millstream_log": 1.0, "level": "warning", "message": "7 is late", "lane": "in-map.0", "attempt": 2.0,
		"trace_id": "ab", "shop": "a", "order": map[string]any{"number": 7.0},
	}
	if got := lineOf(t, written.Bytes()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLoggersMadeFromOneDoNotShareTheirFields(t *testing.T) {
	var written bytes.Buffer
	logger := slog.New(NewLogHandler(&written, slog.LevelDebug)).With("a", 1)
	left, right := logger.With("b", 2), logger.With("c", 3)
	ctx := withCall(context.Background(), &udfv1.Hello{Lane: "in-map.0"}, Call{})
	left.DebugContext(ctx, "left")
	right.ErrorContext(ctx, "right")
	lines := bytes.Split(bytes.TrimSpace(written.Bytes()), []byte("\n"))
	if got := lineOf(t, lines[0]); got["b"] != 2.0 || got["c"] != nil || got["level"] != "debug" {
		t.Error(got)
	}
	if got := lineOf(t, lines[1]); got["c"] != 3.0 || got["b"] != nil || got["level"] != "error" {
		t.Error(got)
	}
}

func TestLongTextsAreCut(t *testing.T) {
	var written bytes.Buffer
	slog.New(NewLogHandler(&written, slog.LevelInfo)).Info(strings.Repeat("ä", 50_000), "much", strings.Repeat("x", 50_000))
	if written.Len() > 64<<10 {
		t.Errorf("%d bytes", written.Len())
	}
	if got := lineOf(t, written.Bytes()); !strings.HasSuffix(got["message"].(string), "... (100000 bytes)") {
		t.Error("the message does not say that it was cut")
	}
}
