package udf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// MapState is a map for each key. Its items are stored apart: only those that change are sent, and each expires by
// itself.
type MapState[K Item, V any] struct {
	values[V]
	items itemCodec[K]
}

// NewMapState declares a map, from items of type K to values of type V, which are stored as those of [NewValueState].
// Texts and numbers are stored as JSON, a []byte as it is.
func NewMapState[K Item, V any](name string, options ...StateOption) *MapState[K, V] {
	state := &MapState[K, V]{items: itemCodecOf[K]()}
	state.values, _ = declareValues[V](name, udfv1.State_KIND_MAP, state.items.name, options)
	return state
}

// Entry is an item of a map and its value.
type Entry[K Item, V any] struct {
	Item  K
	Value V
}

// Get returns the value of an item; the zero value if there is none.
func (s *MapState[K, V]) Get(ctx context.Context, item K) (V, error) {
	value, _, err := s.Lookup(ctx, item)
	return value, err
}

// Lookup returns the value of an item, and whether there is one.
func (s *MapState[K, V]) Lookup(ctx context.Context, item K) (value V, stored bool, err error) {
	place, err := s.place(item)
	if err != nil {
		return value, false, err
	}
	return s.lookup(ctx, place)
}

// Has returns whether there is a value of an item, without reading it.
func (s *MapState[K, V]) Has(ctx context.Context, item K) (bool, error) {
	place, err := s.place(item)
	if err != nil {
		return false, err
	}
	data, _, err := s.get(ctx, place)
	return data != nil, err
}

// Set stores the value of an item.
func (s *MapState[K, V]) Set(ctx context.Context, item K, value V) error {
	place, err := s.place(item)
	if err != nil {
		return err
	}
	return s.set(ctx, place, value)
}

// Delete deletes an item, if it is there.
func (s *MapState[K, V]) Delete(ctx context.Context, item K) error {
	place, err := s.place(item)
	if err != nil {
		return err
	}
	return s.put(ctx, place, nil)
}

// Len returns the number of items.
func (s *MapState[K, V]) Len(ctx context.Context) (int, error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer entries.Leave()
	return len(entries.Items()), nil
}

// Entries returns the items and their values, ordered by the bytes of the encoded items.
func (s *MapState[K, V]) Entries(ctx context.Context) ([]Entry[K, V], error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	places := entries.Items()
	found := stored(entries, places)
	entries.Leave()
	all := make([]Entry[K, V], len(places))
	for i, place := range places {
		if all[i].Item, err = s.items.read(place); err != nil {
			return nil, fmt.Errorf("a stored item of state %s cannot be read: %w", s.Name, err)
		}
		if all[i].Value, err = s.read(found[i].data, found[i].version); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Clear deletes all items.
func (s *MapState[K, V]) Clear(ctx context.Context) error {
	entries, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer entries.Leave()
	return discard(entries, entries.Items())
}

func (s *MapState[K, V]) place(item K) ([]byte, error) {
	place, err := s.items.write(item)
	if err != nil {
		return nil, fmt.Errorf("state %s: %w", s.Name, err)
	}
	return place, nil
}

// storedValue is a value as it is stored.
type storedValue struct {
	data    []byte
	version uint32
}

func stored(entries keyed.Entries, places [][]byte) []storedValue {
	found := make([]storedValue, len(places))
	for i, place := range places {
		found[i].data, found[i].version = entries.Get(place)
	}
	return found
}

func discard(entries keyed.Entries, places [][]byte) error {
	for _, place := range places {
		if err := entries.Put(place, nil); err != nil {
			return err
		}
	}
	return nil
}

// ListState is a list for each key. Its values are stored apart, as the items of a map.
type ListState[T any] struct {
	values[T]
	itemsMax int
}

// NewListState declares a list of values, which are stored as those of [NewValueState]. With [MaxItems], it keeps the
// newest ones.
func NewListState[T any](name string, options ...StateOption) *ListState[T] {
	state := &ListState[T]{}
	var chosen *stateOptions
	state.values, chosen = declareValues[T](name, udfv1.State_KIND_LIST, "", options)
	if chosen.itemsMax != nil {
		state.itemsMax = *chosen.itemsMax
	}
	return state
}

// Append adds values at the end. If there are more than MaxItems then, the first ones are deleted.
func (s *ListState[T]) Append(ctx context.Context, values ...T) error {
	written := make([][]byte, len(values))
	for i, value := range values {
		var err error
		if written[i], err = s.write(value); err != nil {
			return err
		}
	}
	return s.change(ctx, func(entries keyed.Entries, numbers []uint64) ([]uint64, error) {
		for _, data := range written {
			number := uint64(0)
			if len(numbers) > 0 {
				number = numbers[len(numbers)-1] + 1
			}
			place := keyed.Item(number)
			if err := entries.Put(place[:], data); err != nil {
				return nil, err
			}
			numbers = append(numbers, number)
		}
		surplus := 0
		if s.itemsMax > 0 {
			surplus = max(0, len(numbers)-s.itemsMax)
		}
		return numbers[surplus:], discard(entries, placesOf(numbers[:surplus]))
	})
}

// Len returns the number of values.
func (s *ListState[T]) Len(ctx context.Context) (int, error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer entries.Leave()
	numbers, err := entries.Places()
	return len(numbers), err
}

// At returns the value of an index, from 0 to Len-1.
func (s *ListState[T]) At(ctx context.Context, index int) (value T, err error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return value, err
	}
	data, version, err := func() ([]byte, uint32, error) {
		defer entries.Leave()
		numbers, err := s.numbers(entries, index)
		if err != nil {
			return nil, 0, err
		}
		place := keyed.Item(numbers[index])
		data, version := entries.Get(place[:])
		return data, version, nil
	}()
	if err != nil {
		return value, err
	}
	return s.read(data, version)
}

// Set replaces the value of an index, from 0 to Len-1.
func (s *ListState[T]) Set(ctx context.Context, index int, value T) error {
	data, err := s.write(value)
	if err != nil {
		return err
	}
	entries, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer entries.Leave()
	numbers, err := s.numbers(entries, index)
	if err != nil {
		return err
	}
	place := keyed.Item(numbers[index])
	return entries.Put(place[:], data)
}

// Remove deletes the value of an index, from 0 to Len-1. Those that follow it move up.
func (s *ListState[T]) Remove(ctx context.Context, index int) error {
	return s.change(ctx, func(entries keyed.Entries, numbers []uint64) ([]uint64, error) {
		if _, err := s.numbers(entries, index); err != nil {
			return nil, err
		}
		// First, because Delete moves the numbers.
		err := discard(entries, placesOf(numbers[index:index+1]))
		return slices.Delete(numbers, index, index+1), err
	})
}

// All returns the values, in order.
func (s *ListState[T]) All(ctx context.Context) ([]T, error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	found, err := func() ([]storedValue, error) {
		defer entries.Leave()
		numbers, err := entries.Places()
		return stored(entries, placesOf(numbers)), err
	}()
	if err != nil {
		return nil, err
	}
	all := make([]T, len(found))
	for i, one := range found {
		if all[i], err = s.read(one.data, one.version); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Clear deletes all values.
func (s *ListState[T]) Clear(ctx context.Context) error {
	return s.change(ctx, func(entries keyed.Entries, numbers []uint64) ([]uint64, error) {
		return nil, discard(entries, placesOf(numbers))
	})
}

// change replaces the numbers of the values with what edit returns, which may change its argument if it succeeds, or if
// the record fails.
func (s *ListState[T]) change(
	ctx context.Context, edit func(keyed.Entries, []uint64) ([]uint64, error),
) error {
	entries, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer entries.Leave()
	numbers, err := entries.OwnPlaces()
	if err != nil {
		return err
	}
	if numbers, err = edit(entries, numbers); err != nil {
		return err
	}
	entries.PutPlaces(numbers)
	return nil
}

// numbers returns those of the values, which has one at index.
func (s *ListState[T]) numbers(entries keyed.Entries, index int) ([]uint64, error) {
	numbers, err := entries.Places()
	if err == nil && (index < 0 || index >= len(numbers)) {
		err = fmt.Errorf("state %s has %d values, and none at %d", s.Name, len(numbers), index)
	}
	return numbers, err
}

func placesOf(numbers []uint64) [][]byte {
	places := make([][]byte, len(numbers))
	for i, number := range numbers {
		place := keyed.Item(number)
		places[i] = place[:]
	}
	return places
}

// CounterState is a number of 64 bits for each key.
type CounterState struct{ declared }

// NewCounterState declares a counter. It takes TTL and ByProcessingTime.
func NewCounterState(name string, options ...StateOption) *CounterState {
	state := &CounterState{}
	state.declared, _ = declare(name, udfv1.State_KIND_COUNTER, "", "", options)
	return state
}

// Get returns the count; 0 at first.
func (s *CounterState) Get(ctx context.Context) (int64, error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer entries.Leave()
	return s.count(entries)
}

// Add adds n, which may be negative, and returns the new count. More than 64 bits are an error.
func (s *CounterState) Add(ctx context.Context, n int64) (int64, error) {
	entries, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer entries.Leave()
	before, err := s.count(entries)
	if err != nil {
		return 0, err
	}
	count := before + n
	if (count > before) != (n > 0) && n != 0 {
		return 0, errors.New("counter " + s.Name + " would have more than 64 bits")
	}
	return count, entries.Put(nil, binary.LittleEndian.AppendUint64(nil, uint64(count)))
}

// Delete sets the counter back to 0, and forgets it.
func (s *CounterState) Delete(ctx context.Context) error { return s.put(ctx, nil, nil) }

func (s *CounterState) count(entries keyed.Entries) (int64, error) {
	data, _ := entries.Get(nil)
	if data == nil {
		return 0, nil
	}
	if len(data) != 8 {
		return 0, fmt.Errorf("a stored value of state %s has %d bytes, and is no counter", s.Name, len(data))
	}
	return int64(binary.LittleEndian.Uint64(data)), nil
}
