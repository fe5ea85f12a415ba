package udf

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

type sourceStream = grpc.BidiStreamingServer[udfv1.SourceRequest, udfv1.SourceResponse]

func (s *service) Source(stream sourceStream) error {
	defer s.streams.enter()()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := s.check(hello, udfv1.Kind_KIND_SOURCE); err != nil {
		return err
	}
	if err := stream.Send(&udfv1.SourceResponse{Message: &udfv1.SourceResponse_Welcome{Welcome: s.welcome()}}); err != nil {
		return err
	}
	second, err := stream.Recv()
	if err != nil {
		return err
	}
	if second.GetOpen() == nil {
		return status.Error(codes.InvalidArgument, "the second message of a source stream must be SourceOpen")
	}
	lane := &sourceLane{
		ctx:      withCall(stream.Context(), hello, Call{}),
		position: second.GetOpen().GetPosition(),
	}
	start := SourceStart{lane.position, int(second.GetOpen().GetPartition()), int(second.GetOpen().GetPartitions())}
	err = guard(func() error {
		lane.source = s.function.source()
		return lane.source.Open(lane.ctx, start)
	})
	if err != nil {
		return opened("source", err)
	}
	defer closed("source", lane.source.Close)
	requests := receive(stream)
	for {
		select {
		case <-s.drain:
			return nil
		case next, open := <-requests:
			if !open || next.err != nil {
				return next.err
			}
			if err := lane.answer(stream, next.request); err != nil {
				return err
			}
		}
	}
}

// sourceLane is a source, opened at a position.
type sourceLane struct {
	source   Source
	ctx      context.Context
	position []byte
}

func (l *sourceLane) answer(stream sourceStream, request *udfv1.SourceRequest) error {
	if committed := request.GetCommitted(); committed != nil {
		if err := guard(func() error { return l.source.Committed(l.ctx, committed.GetPosition()) }); err != nil {
			// Committed has no answer: a failure ends the stream, which is then opened again.
			log.Printf("the source failed in Committed: %s", wholeCall(err))
			reason, _ := told(err)
			return status.Error(codes.Aborted, "in Committed: "+reason)
		}
		return nil
	}
	batch, err := l.read(request.GetRead())
	if err != nil {
		batch = &udfv1.SourceBatch{Error: wholeCall(err)}
	}
	return stream.Send(&udfv1.SourceResponse{Message: &udfv1.SourceResponse_Batch{Batch: batch}})
}

func (l *sourceLane) read(request *udfv1.SourceRead) (*udfv1.SourceBatch, error) {
	ctx, cancel := context.WithTimeout(l.ctx, time.Duration(request.GetTimeoutUs())*time.Microsecond)
	defer cancel()
	var batch Batch
	err := guard(func() (err error) {
		batch, err = l.source.Read(ctx, int(request.GetRecordsMax()))
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// No record was ready in time.
		batch, err = Batch{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := batchFault(batch, int(request.GetRecordsMax())); err != nil {
		return nil, err
	}
	if batch.Position == nil {
		batch.Position = l.position
	}
	answer := &udfv1.SourceBatch{Position: batch.Position, Ended: batch.Ended, Pending: batch.Pending}
	if len(batch.Records) > 0 {
		answer.Frame = frameOf(batch.Records)
	}
	if size := proto.Size(answer) + 64; size > messageBytesMax {
		return nil, fmt.Errorf("the records of one read came to %d bytes, larger than the protocol's limit of %d", size,
			messageBytesMax)
	}
	l.position = batch.Position
	return answer, nil
}

// batchFault reports why a batch cannot be sent.
func batchFault(batch Batch, most int) error {
	if len(batch.Records) > most {
		return fmt.Errorf("Read returned %d records, but at most %d were requested", len(batch.Records), most)
	}
	if len(batch.Records) > 0 && batch.Position == nil {
		return errors.New("Read returned records without a Position, so reading could not continue after them after a restart")
	}
	for i, record := range batch.Records {
		if (record.ID == "") != (batch.Records[0].ID == "") {
			return errors.New("either all records of a batch have an ID or none")
		}
		if err := textFault(record.Keys, nil, record.Headers); err != nil {
			return fmt.Errorf("record %d of the batch: %w", i, err)
		}
	}
	return nil
}
