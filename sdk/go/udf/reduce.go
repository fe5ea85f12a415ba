package udf

import (
	"context"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// Results are sent when they reach this many bytes.
const answerBytes = 1 << 20

type reduceStream = grpc.BidiStreamingServer[udfv1.ReduceRequest, udfv1.ReduceResponse]

func (s *service) Reduce(stream reduceStream) error {
	defer s.streams.enter()()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.check(first.GetHello(), udfv1.Kind_KIND_REDUCE); err != nil {
		return err
	}
	if err := stream.Send(&udfv1.ReduceResponse{Message: &udfv1.ReduceResponse_Welcome{Welcome: s.welcome()}}); err != nil {
		return err
	}
	ctx := withCall(stream.Context(), first.GetHello(), Call{})
	groups := &groups{stream: stream, parts: receive(stream), drain: s.drain, answer: &udfv1.ReduceAnswer{}}
	for groups.advance() {
		group := groups.group
		messages, err := s.reduced(ctx, group, groups.records)
		groups.skip()
		if groups.gone {
			break
		}
		if err := groups.add(messages, err); err != nil {
			return err
		}
	}
	// Results before the failure, if there are any.
	if err := groups.send(); err != nil {
		return err
	}
	return groups.err
}

// reduced returns the results of a group. A panic is the failure of its own group only.
func (s *service) reduced(ctx context.Context, group Group, records iter.Seq[Record]) (messages []Message, err error) {
	err = guard(func() (err error) {
		if messages, err = s.function.reduce(ctx, group, records); err != nil {
			return err
		}
		return fault(messages, false)
	})
	return messages, err
}

// groups splits the parts of a stream into groups and collects their results.
type groups struct {
	stream reduceStream
	parts  <-chan received[udfv1.ReduceRequest]
	drain  <-chan struct{}
	group  Group
	gone   bool
	err    error

	answer *udfv1.ReduceAnswer
	out    []*Message
	owners []Group // the group of each of out
	bytes  int

	begun      []*udfv1.Group // groups of the part that have not begun
	counts     []uint32       // counts of the part that are not read yet
	unfinished bool           // the last of counts continues in the next part
	inGroup    bool           // counts[0] belongs to the group that is being read
	keyed      bool           // whether the records of the part have keys of their own
	unread     []Record       // records of the part that are not read yet
}

// advance moves to the next group; false at the end of the stream.
func (g *groups) advance() bool {
	for len(g.counts) == 0 {
		if !g.pull() {
			return false
		}
	}
	begun := g.begun[0]
	g.begun = g.begun[1:]
	g.group = Group{
		time.UnixMicro(begun.StartUs).UTC(), time.UnixMicro(begun.EndUs).UTC(), begun.Keys, int(begun.Early),
	}
	g.inGroup = true
	return true
}

// pull reads the next part; false at the end of the stream, or if this process is asked to stop.
func (g *groups) pull() bool {
	var next received[udfv1.ReduceRequest]
	select {
	case received, open := <-g.parts:
		if !open || received.err != nil {
			g.err = received.err
			return false
		}
		next = received
	case <-g.drain:
		// Unanswered groups are sent again to the next process.
		return false
	}
	part := next.request.GetPart()
	expected := len(part.GetGroups())
	if g.inGroup {
		expected++
	}
	records, err := recordsOf(part.GetFrame(), "", "", 0, nil)
	if err != nil {
		g.err = status.Error(codes.InvalidArgument, err.Error())
		return false
	}
	total := 0
	for _, count := range part.GetCounts() {
		total += int(count)
	}
	if len(part.GetCounts()) != expected || expected == 0 || total != len(records) {
		g.err = status.Error(codes.InvalidArgument, "the counts of a part do not fit its groups and records")
		return false
	}
	g.begun, g.counts, g.unfinished = part.GetGroups(), part.GetCounts(), part.GetUnfinished()
	g.unread, g.keyed = records, part.GetFrame().GetKeys() != nil
	return true
}

// records returns the records of the group, which can be read once.
func (g *groups) records(yield func(Record) bool) {
	for g.inGroup {
		for g.counts[0] > 0 {
			record := g.unread[0]
			g.unread = g.unread[1:]
			if !g.keyed {
				record.Keys = g.group.Keys
			}
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

// skip reads the records of its group that the function has not read.
func (g *groups) skip() {
	for range g.records {
	}
}

// add collects the results of the group, and sends an answer when it is large enough, or when the next group is in a
// part that may not arrive soon.
func (g *groups) add(messages []Message, err error) error {
	g.answer.Counts = append(g.answer.Counts, 0)
	if err != nil {
		failure := &udfv1.GroupFailure{Index: uint32(len(g.answer.Counts) - 1), Code: codeOf(err)}
		failure.Error, failure.Detail = told(err)
		g.answer.Failures = append(g.answer.Failures, failure)
		messages = nil
	}
	for i := range messages {
		if g.bytes >= answerBytes {
			// The group continues in the next answer.
			g.answer.Unfinished = true
			if err := g.send(); err != nil {
				return err
			}
			g.answer.Counts = append(g.answer.Counts, 0)
		}
		g.answer.Counts[len(g.answer.Counts)-1]++
		g.out, g.owners = append(g.out, &messages[i]), append(g.owners, g.group)
		// The offsets take space, too, so an answer with empty results is also bounded.
		g.bytes += len(messages[i].Value) + 8
	}
	if g.bytes >= answerBytes || len(g.counts) == 0 {
		return g.send()
	}
	return nil
}

func (g *groups) send() error {
	answer, owners := g.answer, g.owners
	if len(answer.Counts) == 0 {
		return nil
	}
	packed := pack(g.out, func(i int) *Record { return &Record{Keys: owners[i].Keys} })
	answer.Values, answer.Keys, answer.Tags, answer.Headers = packed.values, packed.keys, packed.tags, packed.headers
	g.answer, g.out, g.owners, g.bytes = &udfv1.ReduceAnswer{}, nil, nil, 0
	return g.stream.Send(&udfv1.ReduceResponse{Message: &udfv1.ReduceResponse_Answer{Answer: answer}})
}
