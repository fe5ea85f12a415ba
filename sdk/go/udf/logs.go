package udf

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

const (
	logLevelVariable = "MILLSTREAM_LOG_LEVEL"
	// Millstream accepts lines of up to 64 KiB. Longer values are truncated, so that several fit into one line.
	logTextBytesMax = 16 << 10
)

// NewLogHandler writes log records to w, one line each, in the form from which Millstream reads level and fields. A
// record that is logged with a function's context (slog.InfoContext and similar functions) has the lane, attempt and
// trace id of its call.
//
// Serve makes it the default of log/slog, and so of package log, unless the program has set another.
func NewLogHandler(w io.Writer, level slog.Leveler) slog.Handler {
	json := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inLine})
	base := json.WithAttrs([]slog.Attr{slog.Int("millstream_log", 1)})
	return &logHandler{base: base, whole: base}
}

// logHandler keeps how it was derived: the fields of a call are at the top level, whatever group is open.
type logHandler struct {
	base    slog.Handler
	derived []func(slog.Handler) slog.Handler
	whole   slog.Handler
}

func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.base.Enabled(ctx, level)
}

func (h *logHandler) Handle(ctx context.Context, record slog.Record) error {
	fields := callFields(CallFrom(ctx))
	if len(fields) == 0 {
		return h.whole.Handle(ctx, record)
	}
	handler := h.base.WithAttrs(fields)
	for _, derive := range h.derived {
		handler = derive(handler)
	}
	return handler.Handle(ctx, record)
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.derive(func(handler slog.Handler) slog.Handler { return handler.WithAttrs(attrs) })
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.derive(func(handler slog.Handler) slog.Handler { return handler.WithGroup(name) })
}

func (h *logHandler) derive(how func(slog.Handler) slog.Handler) slog.Handler {
	// A full slice expression: two handlers that are derived from one must not share appended values.
	return &logHandler{base: h.base, derived: append(h.derived[:len(h.derived):len(h.derived)], how), whole: how(h.whole)}
}

func callFields(call Call) []slog.Attr {
	var fields []slog.Attr
	if call.Lane != "" {
		fields = append(fields, slog.String("lane", call.Lane))
	}
	if call.Attempt > 0 {
		fields = append(fields, slog.Int("attempt", call.Attempt))
	}
	if parts := strings.Split(call.Traceparent, "-"); len(parts) > 1 {
		fields = append(fields, slog.String("trace_id", parts[1]))
	}
	return fields
}

// inLine names and formats the members of a line as docs/udf-protocol.md specifies.
func inLine(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch attr.Key {
		case slog.MessageKey:
			return slog.String("message", cut(attr.Value.String()))
		case slog.TimeKey:
			return slog.String("time", attr.Value.Time().Format(time.RFC3339Nano))
		case slog.LevelKey:
			if level, ok := attr.Value.Any().(slog.Level); ok {
				return slog.String("level", levelName(level))
			}
		}
	}
	if attr.Value.Kind() == slog.KindString {
		return slog.String(attr.Key, cut(attr.Value.String()))
	}
	return attr
}

func cut(text string) string {
	if len(text) <= logTextBytesMax {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:logTextBytesMax], ""), len(text))
}

func levelName(level slog.Level) string {
	switch {
	case level < slog.LevelInfo:
		return "debug"
	case level < slog.LevelWarn:
		return "info"
	case level < slog.LevelError:
		return "warning"
	}
	return "error"
}

var goLogger = slog.Default()

// logInLines makes slog write lines that Millstream reads, if Millstream has started the program.
func logInLines() {
	text := os.Getenv(logLevelVariable)
	if text == "" || slog.Default() != goLogger {
		return
	}
	level := map[string]slog.Level{"debug": slog.LevelDebug, "warning": slog.LevelWarn, "error": slog.LevelError}[text]
	slog.SetDefault(slog.New(NewLogHandler(os.Stderr, level)))
}
