package keyed

import (
	"context"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// alone is a context with the states of one key, outside of a record.
type alone struct {
	context.Context
	specs []*Spec
	load  func() *udfv1.StateEntries
	store func(*udfv1.StateChanges)
}

// Alone returns a context for tests, with the states of one key. Each use of a state reads the entries of the key with
// load, and gives what has changed to store.
func Alone(specs []*Spec, load func() *udfv1.StateEntries, store func(*udfv1.StateChanges)) context.Context {
	return &alone{context.Background(), specs, load, store}
}

func (a *alone) Value(key any) any {
	if key != (turnKey{}) {
		return nil
	}
	call, err := NewCall(a.specs, a.load(), []int64{0}, func() int64 { return 0 })
	if err != nil {
		panic(err)
	}
	turn := call.Begin(a.Context, 0)
	turn.onLeave = func() {
		turn.End(Succeeded)
		a.store(call.Changes())
	}
	return turn
}
