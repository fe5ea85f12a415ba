package udftest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
	"github.com/millstream/millstream/sdk/go/udf"
)

// States is what a function remembers, in a test: set before, kept from call to call, looked at afterwards.
//
//	states := udftest.NewStates(t, udf.NewMap(add, udf.States(total)))
//	ada := states.Key("ada")
//	total.Set(ada, 1200)
//	states.Map(udf.Record{Value: []byte("50"), Keys: []string{"ada"}})
//	after, err := total.Get(ada)
type States struct {
	// Watermark of the next call: entries of which the time has come are not there any more, and timers are due.
	Watermark time.Time
	// Now is the present time, for entries that expire by processing time and for timers that go by it; if it is zero,
	// none does.
	Now time.Time

	t        testing.TB
	function *udf.Function
	// promised is the watermark that outputs are not behind.
	promised time.Time
	specs    []*keyed.Spec
	stored   map[string]*keyStates
}

// keyStates is what is remembered for a key.
type keyStates struct {
	key     []string
	entries map[place]storedEntry
}

type place struct{ state, item string }

type storedEntry struct {
	value     []byte
	version   uint32
	expiresUs int64
}

// StateEntry is an entry as it is stored.
type StateEntry struct {
	Key   []string
	State string
	// Item of a map, or number of a value of a list; empty for values and counters.
	Item, Value []byte
	Version     int
	// When it expires; zero: never.
	Expires time.Time
}

// NewStates creates the states of a function, with nothing remembered.
func NewStates(t testing.TB, function *udf.Function) *States {
	t.Helper()
	states := &States{t: t, function: function, stored: map[string]*keyStates{}}
	ctx, client, kind := serve(t, function)
	stream, err := client.Map(ctx)
	must(t, err)
	must(t, stream.Send(&udfv1.MapRequest{Message: &udfv1.MapRequest_Hello{Hello: hello(kind)}}))
	must(t, stream.CloseSend())
	response, err := stream.Recv()
	must(t, err)
	if len(response.GetWelcome().GetStates()) == 0 {
		t.Fatal("the function has no states: name them with udf.States")
	}
	states.declare(response.GetWelcome().GetStates())
	return states
}

// Map runs the function on records, as one call, and keeps what it has changed.
func (s *States) Map(records ...udf.Record) Results {
	s.t.Helper()
	return mapWith(s.t, s, s.function, records, nil)
}

// Key returns a context with the states of a key, which has these parts. What is changed with it is remembered at once,
// and does not expire.
func (s *States) Key(parts ...string) context.Context {
	keys := [][]string{parts}
	load := func() *udfv1.StateEntries { return s.entries(keys, nil) }
	return keyed.Alone(s.specs, load, func(changes *udfv1.StateChanges) {
		// Without a record there is no time from which its life would count.
		if changes != nil {
			changes.ExpiresUs = nil
		}
		s.commit(keys, changes)
	})
}

// All returns everything that is stored, ordered by key, state and item.
func (s *States) All() []StateEntry {
	var all []StateEntry
	for _, one := range s.stored {
		for place, entry := range one.entries {
			found := StateEntry{
				Key: one.key, State: place.state, Item: []byte(place.item), Value: entry.value, Version: int(entry.version),
			}
			if entry.expiresUs != 0 {
				found.Expires = time.UnixMicro(entry.expiresUs).UTC()
			}
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(a, b StateEntry) int {
		return cmp.Or(slices.Compare(a.Key, b.Key), cmp.Compare(a.State, b.State), bytes.Compare(a.Item, b.Item))
	})
	return all
}

// For returns the states for another version of the function, with a copy of what is remembered. The test fails if it
// does not have a state of which something is stored, or stores it in another way.
func (s *States) For(function *udf.Function) *States {
	s.t.Helper()
	other := NewStates(s.t, function)
	other.Watermark, other.Now, other.promised = s.Watermark, s.Now, s.promised
	for _, spec := range s.specs {
		if !slices.ContainsFunc(other.specs, spec.Same) && s.has(spec.Name) {
			s.t.Fatalf("state %s is not there in the same form, and values of it are stored", spec.Name)
		}
	}
	for key, one := range s.stored {
		other.stored[key] = &keyStates{one.key, maps.Clone(one.entries)}
	}
	return other
}

func (s *States) has(state string) bool {
	return slices.ContainsFunc(s.All(), func(entry StateEntry) bool { return entry.State == state })
}

func (s *States) declare(states []*udfv1.State) {
	s.specs = make([]*keyed.Spec, len(states))
	for i, state := range states {
		s.specs[i] = keyed.SpecOf(state)
	}
	if s.stored == nil {
		s.stored = map[string]*keyStates{}
	}
}

// entries is what a pipeline sends for records with these keys, without what has expired, which is forgotten. timers: the
// records are these, which see what expires with them.
func (s *States) entries(keys [][]string, timers []udf.Timer) *udfv1.StateEntries {
	entries := &udfv1.StateEntries{}
	numbers := map[string]uint32{}
	var items, values [][]byte
	var states []byte
	for i, parts := range keys {
		var timer *udf.Timer
		if timers != nil {
			timer = &timers[i]
		}
		key := nameOf(parts)
		if number, known := numbers[key]; known {
			entries.RecordKeys = append(entries.RecordKeys, number)
			continue
		}
		number := uint32(len(numbers))
		numbers[key] = number
		entries.RecordKeys = append(entries.RecordKeys, number)
		stored := s.stored[key]
		if stored == nil {
			continue
		}
		for state, spec := range s.specs {
			if spec.IsTimers() {
				continue
			}
			places := slices.SortedFunc(maps.Keys(stored.entries), func(a, b place) int { return cmp.Compare(a.item, b.item) })
			for _, place := range places {
				entry := stored.entries[place]
				if place.state != spec.Name {
					continue
				}
				if s.isOver(spec, entry.expiresUs, timer) {
					delete(stored.entries, place)
					continue
				}
				entries.Keys, entries.Versions = append(entries.Keys, number), append(entries.Versions, entry.version)
				states, values = append(states, byte(state)), append(values, entry.value)
				items = append(items, []byte(place.item))
			}
		}
	}
	entries.States, entries.Items, entries.Values = states, columns.PackItems(items), columns.PackItems(values)
	return entries
}

func (s *States) isOver(spec *keyed.Spec, expiresUs int64, timer *udf.Timer) bool {
	now, byProcessingTime := s.Watermark, spec.Clock == udfv1.State_CLOCK_PROCESSING_TIME
	if byProcessingTime {
		now = s.Now
	}
	if timer != nil && timer.ByProcessingTime == byProcessingTime {
		now = timer.At.Add(-time.Microsecond)
	}
	return expiresUs != 0 && !now.IsZero() && expiresUs <= now.UnixMicro()
}

// commit keeps what a call has changed. keys: those of its records.
func (s *States) commit(keys [][]string, changes *udfv1.StateChanges) {
	var distinct [][]string
	for _, parts := range keys {
		if !slices.ContainsFunc(distinct, func(one []string) bool { return slices.Equal(one, parts) }) {
			distinct = append(distinct, parts)
		}
	}
	values, items := columns.Items(changes.GetValues()), columns.Items(changes.GetItems())
	for i, number := range changes.GetKeys() {
		spec, parts := s.specs[changes.GetStates()[i]], distinct[number]
		stored := s.stored[nameOf(parts)]
		if stored == nil {
			stored = &keyStates{parts, map[place]storedEntry{}}
			s.stored[nameOf(parts)] = stored
		}
		where := place{state: spec.Name}
		if len(items) > 0 {
			where.item = string(items[i])
		}
		before := stored.entries[where]
		delete(stored.entries, where)
		if len(changes.GetDeleted()) > 0 && changes.GetDeleted()[i] != 0 {
			continue
		}
		entry := storedEntry{value: bytes.Clone(values[i]), version: spec.Version}
		if len(changes.GetExpiresUs()) > 0 {
			entry.expiresUs = changes.GetExpiresUs()[i]
		}
		if entry.expiresUs != 0 && before.expiresUs != 0 && spec.Clock == udfv1.State_CLOCK_EVENT_TIME {
			// A record of an earlier event time does not make it older.
			entry.expiresUs = max(entry.expiresUs, before.expiresUs)
		}
		stored.entries[where] = entry
	}
}

func keysOf(records []udf.Record) [][]string {
	keys := make([][]string, len(records))
	for i, record := range records {
		keys[i] = record.Keys
	}
	return keys
}

// nameOf makes one text of the parts of a key, which is another one for other parts.
func nameOf(parts []string) string { return fmt.Sprintf("%q", parts) }
