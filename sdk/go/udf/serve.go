package udf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

const (
	socketVariable      = "MILLSTREAM_UDF_SOCKET"
	concurrencyVariable = "MILLSTREAM_UDF_CONCURRENCY"
	messageBytesMax     = 64 << 20
	// A few frames, so that the next one has arrived when a call is answered.
	windowBytes = 4 << 20
)

// hopeless is an error that a restart of the same program would not fix.
type hopeless struct{ error }

func (h hopeless) Unwrap() error { return h.error }

// heapFloorBytes is the size of a block that is never touched, so it takes no memory. The garbage collector counts it
// as live. Otherwise a function with little memory would be collected every other frame, for half of its time. With the
// block, up to the same amount of garbage may accumulate.
const heapFloorBytes = 32 << 20

var heapFloor []byte

// raiseHeapFloor does nothing if the environment configures the garbage collector.
var raiseHeapFloor = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		heapFloor = make([]byte, heapFloorBytes)
	}
})

// Main serves function until SIGTERM, finishes the calls that it has, and ends the process: with 0, with 2 if a restart
// cannot help, otherwise with 1.
func Main(function *Function) {
	err := Serve(context.Background(), function)
	if err != nil {
		fmt.Fprintln(os.Stderr, "millstream udf:", err)
	}
	os.Exit(ExitCode(err))
}

// ExitCode is the exit code for the result of Serve, for programs that do not use Main.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, &hopeless{}):
		return 2
	}
	return 1
}

// Serve serves function at the socket that the environment names, until ctx ends or SIGTERM or SIGINT arrives; then it
// finishes the calls that it has. For `millstream validate --import`, it describes the function, and returns.
func Serve(ctx context.Context, function *Function) error {
	if path := os.Getenv(checkVariable); path != "" {
		return function.writeReport(path)
	}
	if function.fault != nil {
		return hopeless{function.fault}
	}
	path := os.Getenv(socketVariable)
	if path == "" {
		return hopeless{fmt.Errorf("%s is not set. Millstream starts this program and sets it; to try a function without "+
			"a pipeline, use the package udftest", socketVariable)}
	}
	if text := os.Getenv(concurrencyVariable); text != "" && function.concurrent() {
		records, err := strconv.Atoi(text)
		if err != nil || records < 1 {
			return hopeless{fmt.Errorf("%s is %q, but must be a whole number of at least 1", concurrencyVariable, text)}
		}
		own := *function
		own.concurrency = records
		function = &own
	}
	listener, err := listen(path)
	if err != nil {
		return err
	}
	settings.takeEnvironment()
	raiseHeapFloor()
	logInLines()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return ServeListener(ctx, listener, function)
}

// ServeListener serves function at a listener, which it closes, until ctx ends; then it finishes the calls that it has.
func ServeListener(ctx context.Context, listener net.Listener, function *Function) error {
	if function.fault != nil {
		listener.Close()
		return hopeless{function.fault}
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax),
		grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(windowBytes),
		grpc.ReadBufferSize(256<<10), grpc.WriteBufferSize(256<<10))
	udfv1.RegisterUdfServer(server, &service{function: function, drain: ctx.Done(), streams: newStreams()})
	drained := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(drained)
		select {
		case <-ctx.Done():
			server.GracefulStop()
		case <-ended:
		}
	}()
	err := server.Serve(listener)
	close(ended)
	<-drained
	return err
}

// listen opens the socket. It replaces the file of a socket without a listener, which a killed process leaves.
func listen(path string) (net.Listener, error) {
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		connection, dialling := net.Dial("unix", path)
		switch {
		case dialling == nil:
			connection.Close()
			return nil, hopeless{fmt.Errorf("another process serves at %s", path)}
		case !errors.Is(dialling, syscall.ECONNREFUSED):
			return nil, hopeless{err}
		}
		if err := os.Remove(path); err != nil {
			return nil, hopeless{err}
		}
		listener, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, hopeless{err}
	}
	return listener, nil
}
