package udf

import (
	"fmt"
	"io"
	"iter"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"millstream.io/examples/udf-go/wire/framev1"
	"millstream.io/examples/udf-go/wire/udfv1"
)

// Results leave when they have come to so many bytes.
const answerBytes = 1 << 20

// Group is one window, [StartUs, EndUs) in microseconds since the epoch, and one key of it where the vertex is keyed.
type Group struct {
	StartUs, EndUs int64
	Keys           []string
	// Number of the early result, from 1; 0 for the final one.
	Early uint32
}

// ReduceFunction gives the results of a group. The records can be read once, and come while it reads them: a group may be
// larger than memory. A message's nil keys are those of the group.
type ReduceFunction func(group Group, records iter.Seq[Record]) ([]Message, error)

// ServeReduce serves a reduce function until SIGTERM, then finishes what it holds.
func ServeReduce(function ReduceFunction) error {
	return serve(&service{reduce: function, kind: udfv1.Kind_KIND_REDUCE})
}

type reduceStream = grpc.BidiStreamingServer[udfv1.ReduceRequest, udfv1.ReduceResponse]

func (s *service) Reduce(stream reduceStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.check(first.GetHello()); err != nil {
		return err
	}
	welcome := &udfv1.Welcome{ProtocolVersion: protocolVersion, CallsMax: 1}
	if err := stream.Send(&udfv1.ReduceResponse{Message: &udfv1.ReduceResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	groups := &groups{parts: receive(stream), drain: s.drain, answer: &udfv1.ReduceAnswer{}}
	for groups.advance() {
		group := groups.group
		messages, err := s.guardedReduce(group, groups.records)
		groups.skip()
		if groups.gone {
			break
		}
		groups.add(messages, err)
		if groups.full() {
			if err := groups.send(stream); err != nil {
				return err
			}
		}
	}
	// What was answered in the part that broke off, if anything.
	if err := groups.send(stream); err != nil {
		return err
	}
	return groups.err
}

// guardedReduce makes a panic the failure of its own group.
func (s *service) guardedReduce(group Group, records iter.Seq[Record]) (messages []Message, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	return s.reduce(group, records)
}

type received struct {
	part *udfv1.ReducePart
	err  error
}

// receive reads the stream ahead by one part.
func receive(stream reduceStream) <-chan received {
	parts := make(chan received)
	go func() {
		defer close(parts)
		for {
			request, err := stream.Recv()
			if err == io.EOF {
				return
			}
			select {
			case parts <- received{request.GetPart(), err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return parts
}

// groups cuts the parts of a stream into groups and collects what they give.
type groups struct {
	parts <-chan received
	drain <-chan struct{}
	group Group
	gone  bool
	err   error

	answer *udfv1.ReduceAnswer
	out    []Message
	keys   [][]string
	bytes  int

	begun      []*udfv1.Group // of the part, not yet begun
	counts     []uint32       // of the part, of what is not yet read
	unfinished bool           // the last of counts goes on in the next part
	inGroup    bool           // counts[0] is of the group that is being read
	rows       rows
}

// rows are the records of a part.
type rows struct {
	values  [][]byte
	times   []int64
	keys    [][]string // nil: each has its group's
	headers []map[string][]byte
	next    int
}

// advance goes to the next group; false at the end of the stream.
func (g *groups) advance() bool {
	for len(g.counts) == 0 {
		if !g.pull() {
			return false
		}
	}
	begun := g.begun[0]
	g.begun = g.begun[1:]
	g.group = Group{begun.StartUs, begun.EndUs, begun.Keys, begun.Early}
	g.inGroup = true
	return true
}

// pull takes the next part; false at the end of the stream, or when this process is told to stop.
func (g *groups) pull() bool {
	var next received
	select {
	case received, open := <-g.parts:
		if !open || received.err != nil {
			g.err = received.err
			return false
		}
		next = received
	case <-g.drain:
		// Groups that are not answered are sent again to the next process.
		return false
	}
	part := next.part
	expected := len(part.GetGroups())
	if g.inGroup {
		expected++
	}
	frame := part.GetFrame()
	n := int(frame.GetInfo().GetRecords())
	total := 0
	for _, count := range part.GetCounts() {
		total += int(count)
	}
	if len(part.GetCounts()) != expected || expected == 0 || total != n {
		g.err = status.Error(codes.InvalidArgument, "the counts of a part do not fit its groups and records")
		return false
	}
	g.begun, g.counts, g.unfinished = part.GetGroups(), part.GetCounts(), part.GetUnfinished()
	g.rows = rowsOf(frame, n)
	return true
}

func rowsOf(frame *framev1.Frame, n int) rows {
	all := rows{values: items(frame.GetValues()), times: frame.GetEventTimesUs(), headers: headers(frame.GetHeaders(), n)}
	if frame.GetKeys() != nil {
		all.keys = lists(frame.GetKeys(), n)
	}
	return all
}

// records are those of the group, and are read once.
func (g *groups) records(yield func(Record) bool) {
	for g.inGroup {
		for g.counts[0] > 0 {
			i := g.rows.next
			record := Record{g.rows.values[i], g.group.Keys, g.rows.headers[i], g.rows.times[i]}
			if g.rows.keys != nil {
				record.Keys = g.rows.keys[i]
			}
			g.rows.next++
			g.counts[0]--
			if !yield(record) {
				return
			}
		}
		if g.unfinished && len(g.counts) == 1 {
			if !g.pull() {
				g.gone, g.inGroup = true, false
				return
			}
			continue
		}
		g.counts, g.inGroup = g.counts[1:], false
	}
}

// skip reads what the function has left of its group.
func (g *groups) skip() {
	for range g.records {
	}
}

func (g *groups) add(messages []Message, err error) {
	if err != nil {
		failure := &udfv1.GroupFailure{Index: uint32(len(g.answer.Counts)), Error: err.Error()}
		g.answer.Failures = append(g.answer.Failures, failure)
		messages = nil
	}
	g.answer.Counts = append(g.answer.Counts, uint32(len(messages)))
	for _, message := range messages {
		if message.Keys == nil {
			message.Keys = g.group.Keys
		}
		g.out = append(g.out, message)
		g.bytes += len(message.Value)
	}
}

// full: there is enough for an answer, or the next group is in a part that may take a while to come.
func (g *groups) full() bool { return g.bytes >= answerBytes || len(g.counts) == 0 }

func (g *groups) send(stream reduceStream) error {
	answer, out := g.answer, g.out
	if len(answer.Counts) == 0 {
		return nil
	}
	values, keys, tags := make([][]byte, len(out)), make([][]string, len(out)), make([][]string, len(out))
	headers := make([]map[string][]byte, len(out))
	for i, message := range out {
		values[i], keys[i], tags[i], headers[i] = message.Value, message.Keys, message.Tags, message.Headers
	}
	answer.Values = bytesColumn(values)
	if len(out) > 0 {
		answer.Keys, answer.Tags, answer.Headers = listColumn(keys), listColumn(tags), headersColumn(headers)
	}
	g.answer, g.out, g.bytes = &udfv1.ReduceAnswer{}, nil, 0
	return stream.Send(&udfv1.ReduceResponse{Message: &udfv1.ReduceResponse_Answer{Answer: answer}})
}
