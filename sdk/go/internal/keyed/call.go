package keyed

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// cell is an entry: one that the call has, or one that a record has written.
type cell struct {
	item []byte
	// stored is the value after the last record that succeeded. nil: there is none.
	stored []byte
	// written is the value that the open turn has written, if isWritten. nil: deleted.
	written []byte
	// before is the value in the call, if the entry has been written since.
	before []byte
	// expiresUs is when it expires, if a record of this call has renewed it: then it counts as changed even if its bytes
	// are the same.
	expiresUs int64
	// version of the stored value, and of the one before.
	version, versionBefore uint32
	isWritten, isChanged   bool
}

// present is the value that a record sees, nil if there is none.
func (c *cell) present() []byte {
	if c.isWritten {
		return c.written
	}
	return c.stored
}

// group has the entries of one state of one key.
type group struct {
	// cells are those of the call, ordered by item.
	cells []cell
	// single is the entry of a value or a counter that the call does not have, and added are those of a map or a list.
	single *cell
	added  map[string]*cell
	places *places
}

// find returns the entry of an item; nil if there has never been one.
func (g *group) find(item []byte) *cell {
	if len(item) == 0 && g.single != nil {
		return g.single
	}
	at, found := slices.BinarySearchFunc(g.cells, item, func(one cell, item []byte) int {
		return bytes.Compare(one.item, item)
	})
	if found {
		return &g.cells[at]
	}
	return g.added[string(item)]
}

// changed is an entry that a record has written, and its state.
type changed struct {
	cell  *cell
	state byte
}

// key is what a call has of one key besides its entries. One record of it is processed at a time.
type key struct {
	// isHeld: a record has failed or is to be retried, or is being processed.
	isHeld  bool
	changed []changed
	// space is that of the first change, which most keys have alone.
	space [1]changed
}

// Call has the states of a call.
type Call struct {
	// RecordKeys has the index of the key of each record.
	RecordKeys []uint32
	// specs are those of the function.
	specs []*Spec
	// timesUs are the event times of the records.
	timesUs []int64
	keys    []key
	// groups has the states of the first key, then those of the second, and so on.
	groups []group
	turns  []Turn
	nowUs  func() int64
}

// NewCall reads the entries of a call. timesUs: the event time of each record. nowUs: the present time, by which entries
// expire. An error says that the entries do not fit the call or the function.
func NewCall(specs []*Spec, entries *udfv1.StateEntries, timesUs []int64, nowUs func() int64) (*Call, error) {
	if entries == nil {
		return nil, errors.New("the call has nothing of the function's states: this Millstream does not know functions " +
			"with states; install the release of the SDK")
	}
	call := &Call{
		RecordKeys: entries.GetRecordKeys(), specs: specs, timesUs: timesUs, nowUs: nowUs,
		turns: make([]Turn, len(timesUs)),
	}
	if len(call.RecordKeys) != len(timesUs) {
		return nil, fmt.Errorf("the entries of states have keys for %d records, the call has %d", len(call.RecordKeys),
			len(timesUs))
	}
	keys := 0
	for _, number := range call.RecordKeys {
		if int(number) > keys {
			return nil, errors.New("the keys of the records are not numbered in the order in which they first occur")
		}
		keys = max(keys, int(number)+1)
	}
	call.keys, call.groups = make([]key, keys), make([]group, keys*len(specs))
	if err := call.fill(entries); err != nil {
		return nil, err
	}
	return call, nil
}

func (c *Call) fill(entries *udfv1.StateEntries) error {
	numbers, states, versions := entries.GetKeys(), entries.GetStates(), entries.GetVersions()
	values, items := columns.Items(entries.GetValues()), columns.Items(entries.GetItems())
	count := len(numbers)
	if len(states) != count || len(values) != count || (len(items) > 0 && len(items) != count) ||
		(len(versions) > 0 && len(versions) != count) {
		return fmt.Errorf("%d entries of states have %d states, %d values, %d items and %d versions", count, len(states),
			len(values), len(items), len(versions))
	}
	cells := make([]cell, count)
	for first := 0; first < count; {
		key, state, next := numbers[first], states[first], first
		if int(key) >= len(c.keys) || int(state) >= len(c.specs) {
			return errors.New("an entry of a state has a key or a state that does not exist")
		}
		spec := c.specs[state]
		for ; next < count && numbers[next] == key && states[next] == state; next++ {
			one := &cells[next]
			one.stored, one.version = kept(values[next]), 1
			if len(versions) > 0 {
				one.version = max(1, versions[next])
			}
			if len(items) > 0 {
				one.item = items[next]
			}
			if next > first && bytes.Compare(cells[next-1].item, one.item) >= 0 {
				return fmt.Errorf("the entries of state %s are not ordered by their items", spec.Name)
			}
		}
		if next > first+1 && !spec.hasItems() {
			return fmt.Errorf("a key has several entries of state %s", spec.Name)
		}
		group := c.group(int(key), int(state))
		if group.cells != nil {
			return fmt.Errorf("the entries of state %s of a key are not together", spec.Name)
		}
		group.cells = cells[first:next:next]
		first = next
	}
	return nil
}

// kept returns a value that is not nil, which would mean that there is none.
func kept(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

func (c *Call) group(key, state int) *group { return &c.groups[key*len(c.specs)+state] }

// Chains returns the indexes of the records by key, in the order in which keys first occur. Records of one key have to
// be processed one after another, in order.
func (c *Call) Chains() [][]int {
	chains := make([][]int, len(c.keys))
	for record, key := range c.RecordKeys {
		chains[key] = append(chains[key], record)
	}
	return chains
}

// Changes returns the entries that have other bytes, another expiry or another version than in the call, and the timers
// that were set or cancelled; nil if there are none. No turn may be open.
func (c *Call) Changes() *udfv1.StateChanges {
	count := 0
	for number := range c.keys {
		count += len(c.keys[number].changed)
	}
	if count == 0 {
		return nil
	}
	changes := &udfv1.StateChanges{Keys: make([]uint32, 0, count), States: make([]byte, 0, count)}
	items, values := make([][]byte, 0, count), make([][]byte, 0, count)
	deleted, expires := make([]byte, 0, count), make([]int64, 0, count)
	var some struct{ deleted, expires bool }
	for number := range c.keys {
		for _, one := range c.keys[number].changed {
			cell := one.cell
			// A timer may be another one than before, or one less, although nothing is known of that.
			isKnown := !c.specs[one.state].IsTimers()
			if isKnown && cell.expiresUs == 0 && cell.version == cell.versionBefore && same(cell.stored, cell.before) {
				continue
			}
			expiresUs, isDeleted := cell.expiresUs, byte(0)
			if cell.stored == nil {
				if isKnown && cell.before == nil {
					continue
				}
				expiresUs, isDeleted = 0, 1
			}
			changes.Keys, changes.States = append(changes.Keys, uint32(number)), append(changes.States, one.state)
			items, values = append(items, cell.item), append(values, cell.stored)
			deleted, expires = append(deleted, isDeleted), append(expires, expiresUs)
			some.deleted, some.expires = some.deleted || isDeleted != 0, some.expires || expiresUs != 0
		}
	}
	if len(changes.Keys) == 0 {
		return nil
	}
	changes.Values = columns.PackItems(values)
	if slices.ContainsFunc(c.specs, (*Spec).hasItems) {
		changes.Items = columns.PackItems(items)
	}
	if some.deleted {
		changes.Deleted = deleted
	}
	if some.expires {
		changes.ExpiresUs = expires
	}
	return changes
}

// same: whether both are the same value, or both are none.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
