package udf

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestErrorsThatAnotherStartWouldMeetAgainEndWith2(t *testing.T) {
	nothing := NewMap(func(context.Context, Record) ([]Message, error) { return nil, nil })
	taken, err := net.Listen("unix", filepath.Join(t.TempDir(), "taken"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, one := range []struct{ socket, concurrency, expected string }{
		{"", "", "MILLSTREAM_UDF_SOCKET is not set"},
		{filepath.Join(t.TempDir(), "socket"), "many", `MILLSTREAM_UDF_CONCURRENCY is "many", but must be a whole number of at least 1`},
		{filepath.Join(t.TempDir(), "no", "socket"), "", "no such file or directory"},
		{taken.Addr().String(), "", "another process serves at"},
	} {
		t.Setenv(socketVariable, one.socket)
		t.Setenv(concurrencyVariable, one.concurrency)
		err := Serve(context.Background(), nothing)
		if err == nil || !strings.Contains(err.Error(), one.expected) || ExitCode(err) != 2 {
			t.Errorf("got %v with exit code %d, want %q", err, ExitCode(err), one.expected)
		}
	}
	if ExitCode(nil) != 0 || ExitCode(errors.New("lost")) != 1 {
		t.Error("other exit codes")
	}
}
