package udf

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// State is something that a map remembers for each key of its records: a [ValueState], [MapState], [ListState] or
// [CounterState], or the [Timers] that are set for the key. It is declared once, usually in a variable of the package, and named to the map with [States]:
//
//	var total = udf.NewValueState[int64]("total")
//
//	func add(ctx context.Context, record udf.Record) ([]udf.Message, error) {
//		before, err := total.Get(ctx)
//		...
//		err = total.Set(ctx, before+1)
//
//	func main() { udf.Main(udf.NewMap(add, udf.States(total))) }
//
// Its methods take the context that the function has got, or one made from it. They belong to the key of that record, and
// return an error once the function has returned for it. What they change is committed together with the record's
// outputs; a record for which the function returns an error, or panics, changes nothing.
type State interface {
	declaration() *declared
}

// declared is what all kinds of states have.
type declared struct {
	keyed.Spec
	// fault is what is wrong with the declaration. It is reported when the function is served.
	fault error
}

func (d *declared) declaration() *declared { return d }

// StateOption says how the values of a state are stored, and for how long.
type StateOption func(*stateOptions)

type stateOptions struct {
	version    int
	migrations map[int]makeMigration
	ttl        *time.Duration
	clock      udfv1.State_Clock
	itemsMax   *int
	marshal    func(any) ([]byte, error)
	unmarshal  func([]byte, any) error
}

// TTL is how long an entry is kept after the record that wrote it last: after its event time, by the watermark, or with
// [ByProcessingTime] after the time at which it was processed. The items of a map and the values of a list expire by
// themselves.
func TTL(ttl time.Duration) StateOption {
	return func(options *stateOptions) { options.ttl = &ttl }
}

// ByProcessingTime lets entries expire by the clock of the vertex instead of the watermark.
func ByProcessingTime() StateOption {
	return func(options *stateOptions) { options.clock = udfv1.State_CLOCK_PROCESSING_TIME }
}

// StateVersion is the version of the values that the function writes; 1 by default. Raise it when values of before can
// no longer be read, and add a [MigrateFrom].
func StateVersion(version int) StateOption {
	return func(options *stateOptions) { options.version = version }
}

// MigrateFrom converts stored values of a version to those of the next one, when they are read. A function is not
// started where values are stored from whose version no such steps lead to its own.
func MigrateFrom[Old, New any](version int, convert func(Old) (New, error)) StateOption {
	return func(options *stateOptions) {
		if options.migrations == nil {
			options.migrations = map[int]makeMigration{}
		}
		options.migrations[version] = func(options *stateOptions) migration {
			from, to := codecOf[Old](options), codecOf[New](options)
			return migration{from.name, to.name, func(data []byte) ([]byte, error) {
				old, err := from.read(data)
				if err != nil {
					return nil, err
				}
				converted, err := convert(old)
				if err != nil {
					return nil, err
				}
				return to.write(converted)
			}}
		}
	}
}

// MaxItems is how many values a list keeps: the newest ones.
func MaxItems(values int) StateOption {
	return func(options *stateOptions) { options.itemsMax = &values }
}

// MessagePack stores values as MessagePack, with the functions of a package for it, such as msgpack.Marshal and
// msgpack.Unmarshal of github.com/vmihailenco/msgpack/v5. This module does not depend on one.
func MessagePack(marshal func(any) ([]byte, error), unmarshal func([]byte, any) error) StateOption {
	return func(options *stateOptions) { options.marshal, options.unmarshal = marshal, unmarshal }
}

// States names the states of a map, at most 255. The vertex needs `state: {}` in its `udf`.
func States(states ...State) Option {
	return func(function *Function) {
		for _, state := range states {
			function.declare(state.declaration())
		}
	}
}

func (f *Function) declare(state *declared) {
	for _, other := range f.states {
		if other.Name == state.Name {
			f.fault = errors.Join(f.fault, fmt.Errorf("the function has two states with the name %s", state.Name))
		}
	}
	f.states = append(f.states, &state.Spec)
	f.fault = errors.Join(f.fault, state.fault)
	switch {
	case len(f.states) == keyed.StatesMax+1:
		f.fault = errors.Join(f.fault, fmt.Errorf("the function has more than %d states: use a map state for some of "+
			"them", keyed.StatesMax))
	case len(f.states) == 1 && f.kind != udfv1.Kind_KIND_MAP:
		f.fault = errors.Join(f.fault, fmt.Errorf("a %s cannot have states: they belong to maps. Put a map before it",
			kindNames[f.kind]))
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// declare makes what all kinds of states have. codec: of its values; itemCodec: of the items of a map.
func declare(
	name string, kind udfv1.State_Kind, codec, itemCodec string, options []StateOption,
) (declared, *stateOptions) {
	chosen := &stateOptions{version: 1, clock: udfv1.State_CLOCK_EVENT_TIME}
	for _, option := range options {
		option(chosen)
	}
	state := declared{Spec: keyed.Spec{
		Name: name, Kind: kind, Codec: codec, ItemCodec: itemCodec, Version: 1, Oldest: 1, Clock: chosen.clock,
	}}
	if !nameForm.MatchString(name) {
		state.refuse("the name of state %s must have at most 63 letters (A to Z), digits and _, and begin with no digit", name)
	}
	if chosen.ttl != nil {
		if state.TTL = chosen.ttl.Microseconds(); state.TTL < 1 {
			state.refuse("the TTL of state %s must be at least a microsecond, not %s", name, *chosen.ttl)
		}
	}
	if chosen.itemsMax != nil && (kind != udfv1.State_KIND_LIST || *chosen.itemsMax < 1) {
		state.refuse("MaxItems of state %s must be at least 1, and is for list states", name)
	}
	if kind == udfv1.State_KIND_COUNTER && (chosen.version != 1 || chosen.migrations != nil || chosen.marshal != nil) {
		state.refuse("counter %s has neither versions nor MessagePack: it is stored as a number", name)
	}
	return state, chosen
}

func (d *declared) refuse(format string, arguments ...any) {
	d.fault = errors.Join(d.fault, fmt.Errorf(format, arguments...))
}

// enter returns the entries of the state for the record of a context, until Leave.
func (d *declared) enter(ctx context.Context) (keyed.Entries, error) {
	entries, err := keyed.Enter(ctx, &d.Spec)
	if err == nil {
		return entries, nil
	}
	// A function without states has a call, but no turns.
	if _, called := ctx.Value(callKey{}).(Call); errors.Is(err, keyed.ErrUnknownState) || called && !keyed.HasTurn(ctx) {
		return entries, fmt.Errorf("state %s is not one of the function that runs: name it to its map with udf.States",
			d.Name)
	}
	return entries, fmt.Errorf("state %s can only be used with the context of a record, until the function has returned "+
		"for it. (In tests, udftest.States has contexts.)", d.Name)
}

// put stores the value of an item (nil: deletes it) for the record of a context.
func (d *declared) put(ctx context.Context, item, value []byte) error {
	entries, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer entries.Leave()
	return entries.Put(item, value)
}

// get returns the stored value of an item and its version; nil if there is none.
func (d *declared) get(ctx context.Context, item []byte) ([]byte, uint32, error) {
	entries, err := d.enter(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer entries.Leave()
	value, version := entries.Get(item)
	return value, version, nil
}
