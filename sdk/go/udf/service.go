package udf

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

const (
	protocolVersion = 1
	// Calls held at a time if records are processed sequentially, so that the next one is always there.
	callsMaxPlain = 16
	// Calls held at a time if records are processed concurrently: calls may be as small as one record.
	callsMaxConcurrent = 1024
)

var kindNames = map[udfv1.Kind]string{
	udfv1.Kind_KIND_MAP:              "map",
	udfv1.Kind_KIND_SOURCE_TRANSFORM: "source transform",
	udfv1.Kind_KIND_SINK:             "sink",
	udfv1.Kind_KIND_SOURCE:           "source",
	udfv1.Kind_KIND_REDUCE:           "reduce",
}

type service struct {
	udfv1.UnimplementedUdfServer
	function *Function
	// Closed when streams have to end.
	drain <-chan struct{}
	// Those with calls.
	streams *streams
}

func (s *service) Describe(context.Context, *udfv1.DescribeRequest) (*udfv1.DescribeResponse, error) {
	return &udfv1.DescribeResponse{
		ProtocolVersion: protocolVersion,
		Kinds:           []udfv1.Kind{s.function.kind},
		Language:        "go",
		SdkVersion:      Version,
		Concurrency:     uint32(s.function.concurrency),
		KeepsPositions:  s.function.positions != nil,
	}, nil
}

func (s *service) callsMax() int {
	return min(max(callsMaxPlain, s.function.concurrency), callsMaxConcurrent)
}

// check checks the client's first message. An error with one of these codes stops the pipeline with its message,
// because the next stream would fail in the same way.
func (s *service) check(hello *udfv1.Hello, kinds ...udfv1.Kind) error {
	if hello == nil || hello.ProtocolVersion == 0 {
		return status.Error(codes.InvalidArgument, "the first message of a stream must be Hello")
	}
	if hello.ProtocolVersion != protocolVersion {
		return status.Errorf(codes.FailedPrecondition, "this function uses version %d of the protocol, but the "+
			"calling Millstream uses version %d; build it with the SDK of the same release as Millstream",
			protocolVersion, hello.ProtocolVersion)
	}
	if err := settings.take(hello.GetConfig(), hello.GetSecrets()); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	for _, kind := range kinds {
		if hello.Kind == kind && kind == s.function.kind {
			return nil
		}
	}
	return status.Errorf(codes.Unimplemented, "this function serves %s, but vertex %s of %s needs %s",
		kindNames[s.function.kind], hello.Vertex, hello.Pipeline, kindNames[hello.Kind])
}

func (s *service) welcome() *udfv1.Welcome {
	return &udfv1.Welcome{ProtocolVersion: protocolVersion, CallsMax: uint32(s.callsMax())}
}

type received[Request any] struct {
	request *Request
	err     error
}

// receive prefetches one message of a stream.
func receive[Request, Response any](stream grpc.BidiStreamingServer[Request, Response]) <-chan received[Request] {
	requests := make(chan received[Request])
	go func() {
		defer close(requests)
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			select {
			case requests <- received[Request]{request, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return requests
}

// converse reads calls, passes each to begin, and writes the answers as they become ready, until the stream ends or the
// drain begins. Calls that are not read then are sent again to the next process. begin returns immediately, and answers
// later.
func converse[Request, Response any](
	s *service, stream grpc.BidiStreamingServer[Request, Response], begin func(*Request, func(*Response)),
) error {
	held := newHeld(s.callsMax())
	defer held.wait()
	var sending sync.Mutex
	requests := receive(stream)
	for {
		var next received[Request]
		select {
		case <-s.drain:
			return nil
		case given, open := <-requests:
			if !open || given.err != nil {
				return given.err
			}
			next = given
		}
		size := proto.Size(any(next.request).(proto.Message))
		held.acquire(size)
		begin(next.request, func(response *Response) {
			defer held.release(size)
			sending.Lock()
			defer sending.Unlock()
			// If the stream is lost, its reader fails, too, and the call is sent again on the next one.
			_ = stream.Send(response)
		})
	}
}
