package udf

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// metricsInterval is the time between two messages with metrics.
const metricsInterval = time.Second

// streams counts the open streams that may still count something.
type streams struct {
	mutex sync.Mutex
	ended *sync.Cond
	open  int
}

func newStreams() *streams {
	s := &streams{}
	s.ended = sync.NewCond(&s.mutex)
	return s
}

// enter returns what to call at the end of the stream.
func (s *streams) enter() func() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.open++
	return func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.open--
		s.ended.Broadcast()
	}
}

// wait returns when none is open.
func (s *streams) wait() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.open > 0 {
		s.ended.Wait()
	}
}

// Metrics sends what has been counted: the first change at once, then at most every second, and the last ones when all
// calls are answered.
func (s *service) Metrics(_ *udfv1.MetricsRequest, stream grpc.ServerStreamingServer[udfv1.MetricsResponse]) error {
	// The client knows by it that the stream is open: there may be no message for a long time.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for isLast := false; !isLast; {
		select {
		case <-metrics.changed:
		case <-s.drain:
			s.streams.wait()
			isLast = true
		case <-stream.Context().Done():
			return nil
		}
		if series := metrics.take(); len(series) > 0 {
			if err := stream.Send(&udfv1.MetricsResponse{Series: series}); err != nil {
				return err
			}
		}
		if !isLast {
			select {
			case <-time.After(metricsInterval):
			case <-s.drain:
			case <-stream.Context().Done():
				return nil
			}
		}
	}
	return nil
}
