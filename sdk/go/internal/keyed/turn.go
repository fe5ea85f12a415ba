package keyed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrNoTurn is the error of Enter for a context without a turn, or whose turn has ended.
var ErrNoTurn = errors.New("no record is processed")

// ErrUnknownState is the error of Enter for a state that is not one of the function's.
var ErrUnknownState = errors.New("the state is not one of the function that runs")

// Turn is the context of one record, with the states of its key. It is open until End.
type Turn struct {
	context.Context
	// mutex: a goroutine that the function has started may use the states at the same time, or when the record is over.
	mutex       sync.Mutex
	call        *Call
	key, record int
	isOpen      bool
	// fault is why the record has to fail.
	fault  error
	writes []changed
	lists  []*places
	// space is that of the first writes.
	space [2]changed
	// onLeave is called whenever a state has been used: for tests, which have no record.
	onLeave func()
}

type turnKey struct{}

// Value has the turn itself, for Enter, which may get a context that was made from it.
func (t *Turn) Value(key any) any {
	if key == (turnKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// Begin begins the turn of a record. nil: the record is held up. Until End, its key is held.
func (c *Call) Begin(ctx context.Context, record int) *Turn {
	number := c.RecordKeys[record]
	key := &c.keys[number]
	if key.isHeld {
		return nil
	}
	key.isHeld = true
	turn := &c.turns[record]
	turn.Context, turn.call, turn.key, turn.record, turn.isOpen = ctx, c, int(number), record, true
	turn.writes = turn.space[:0]
	return turn
}

// Fault returns why the record has to fail, although the function may not have returned it: it has written an entry
// with a version that the function does not know.
func (t *Turn) Fault() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.fault
}

// Outcome is how a record has ended.
type Outcome int

const (
	// Failed or to be retried: it leaves no change, and later records of its key are held up.
	Failed Outcome = iota
	// Done without success, as after a dead letter: it leaves no change.
	Done
	// Succeeded: what it has changed counts.
	Succeeded
)

// End ends the turn. Its states cannot be used any more.
func (t *Turn) End(outcome Outcome) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	key := &t.call.keys[t.key]
	for _, write := range t.writes {
		if outcome == Succeeded {
			t.apply(key, write)
		}
		write.cell.written, write.cell.isWritten = nil, false
	}
	for _, list := range t.lists {
		if outcome == Succeeded {
			list.stored = list.written
		}
		list.written, list.isWritten = nil, false
	}
	key.isHeld = outcome == Failed
	// A context may outlive its call by far.
	t.isOpen, t.call, t.writes, t.lists, t.space = false, nil, nil, nil, [2]changed{}
}

func (t *Turn) apply(key *key, write changed) {
	cell, spec := write.cell, t.call.specs[write.state]
	isWritten := cell.written != nil
	isOld := cell.stored != nil && cell.version != spec.Version
	if same(cell.written, cell.stored) && !isOld && !spec.IsTimers() && !(isWritten && spec.TTL > 0) {
		return
	}
	if !cell.isChanged {
		cell.isChanged, cell.before, cell.versionBefore = true, cell.stored, cell.version
		if key.changed == nil {
			key.changed = key.space[:0]
		}
		key.changed = append(key.changed, write)
	}
	cell.stored, cell.version = cell.written, spec.Version
	if isWritten && spec.TTL > 0 {
		cell.expiresUs = t.expiry(spec, cell.expiresUs)
	} else {
		cell.expiresUs = 0
	}
}

// expiry is when an entry expires that this record has written. before: the same of an earlier record, or 0.
func (t *Turn) expiry(spec *Spec, before int64) int64 {
	if spec.byProcessingTime() {
		return t.call.nowUs() + spec.TTL
	}
	expiry := t.call.timesUs[t.record] + spec.TTL
	if before != 0 {
		// A late record does not make an entry older.
		expiry = max(expiry, before)
	}
	if expiry == 0 {
		// 0 would be never.
		return 1
	}
	return expiry
}

// HasTurn returns whether a context belongs to a record of a function with states, which may be over.
func HasTurn(ctx context.Context) bool {
	turn, _ := ctx.Value(turnKey{}).(*Turn)
	return turn != nil
}

// Entries are those of one state of the key of a record, in use until Leave.
type Entries struct {
	turn  *Turn
	group *group
	spec  *Spec
	state byte
}

// Enter returns the entries of a state for the record of a context, for use by this goroutine until Leave. No code of
// users may run before that.
func Enter(ctx context.Context, spec *Spec) (Entries, error) {
	turn, isTurn := ctx.(*Turn)
	if !isTurn {
		if turn, isTurn = ctx.Value(turnKey{}).(*Turn); !isTurn {
			return Entries{}, ErrNoTurn
		}
	}
	turn.mutex.Lock()
	if !turn.isOpen {
		turn.mutex.Unlock()
		return Entries{}, ErrNoTurn
	}
	for state, one := range turn.call.specs {
		if one.Same(spec) {
			return Entries{turn, turn.call.group(turn.key, state), spec, byte(state)}, nil
		}
	}
	turn.mutex.Unlock()
	return Entries{}, ErrUnknownState
}

// Leave ends the use.
func (e Entries) Leave() {
	onLeave := e.turn.onLeave
	e.turn.mutex.Unlock()
	if onLeave != nil {
		onLeave()
	}
}

// EventTimeUs is the event time of the record.
func (e Entries) EventTimeUs() int64 { return e.turn.call.timesUs[e.turn.record] }

// Get returns the value of an item and its version; nil if there is none. It must not be changed, and stays as it is.
func (e Entries) Get(item []byte) (value []byte, version uint32) {
	cell := e.group.find(item)
	if cell == nil {
		return nil, 0
	}
	if cell.isWritten {
		return cell.written, e.spec.Version
	}
	return cell.stored, cell.version
}

// Put stores a value, which must not change any more, or deletes it (nil).
func (e Entries) Put(item, value []byte) error {
	cell := e.group.find(item)
	if cell == nil {
		if value == nil && !e.spec.IsTimers() {
			return nil
		}
		cell = e.add(item)
	}
	if !cell.isWritten {
		if cell.stored != nil {
			if err := e.spec.CheckVersion(cell.version); err != nil {
				e.turn.fault = err
				return err
			}
		}
		cell.isWritten = true
		e.turn.writes = append(e.turn.writes, changed{cell, e.state})
	}
	cell.written = value
	return nil
}

func (e Entries) add(item []byte) *cell {
	added := &cell{}
	if len(item) == 0 && !e.spec.hasItems() {
		e.group.single = added
		return added
	}
	added.item = slices.Clone(item)
	if e.group.added == nil {
		e.group.added = map[string]*cell{}
	}
	e.group.added[string(item)] = added
	return added
}

// Items returns the items of a map, ordered by their bytes, so that it does not depend on what a call has.
func (e Entries) Items() [][]byte {
	var items [][]byte
	for i := range e.group.cells {
		if e.group.cells[i].present() != nil {
			items = append(items, e.group.cells[i].item)
		}
	}
	inOrder := len(items)
	for _, one := range e.group.added {
		if one.present() != nil {
			items = append(items, one.item)
		}
	}
	if len(items) > inOrder {
		slices.SortFunc(items, func(a, b []byte) int { return strings.Compare(string(a), string(b)) })
	}
	return items
}

// places are the items of a list, which are numbers, in order.
type places struct {
	stored []uint64
	// written are those of the open turn, if isWritten.
	written   []uint64
	isWritten bool
}

const numberBytes = 8

// Item is the item of a number of a list.
func Item(number uint64) [numberBytes]byte {
	var item [numberBytes]byte
	binary.BigEndian.PutUint64(item[:], number)
	return item
}

// Places returns the numbers of the values of a list, in order. They must not be changed.
func (e Entries) Places() ([]uint64, error) {
	list := e.group.places
	if list == nil {
		stored := make([]uint64, len(e.group.cells))
		for i := range e.group.cells {
			item := e.group.cells[i].item
			if len(item) != numberBytes {
				return nil, fmt.Errorf("a stored item of state %s has %d bytes, and is no number of a list", e.spec.Name,
					len(item))
			}
			stored[i] = binary.BigEndian.Uint64(item)
		}
		list = &places{stored: stored}
		e.group.places = list
	}
	if list.isWritten {
		return list.written, nil
	}
	return list.stored, nil
}

// OwnPlaces is as Places, with a slice for PutPlaces that the caller may change.
func (e Entries) OwnPlaces() ([]uint64, error) {
	numbers, err := e.Places()
	if err != nil || e.group.places.isWritten {
		// The turn has a copy.
		return numbers, err
	}
	return slices.Clone(numbers), nil
}

// PutPlaces replaces what OwnPlaces has returned before. The caller stores and deletes the values.
func (e Entries) PutPlaces(numbers []uint64) {
	list := e.group.places
	if !list.isWritten {
		list.isWritten = true
		e.turn.lists = append(e.turn.lists, list)
	}
	list.written = numbers
}
