package kubeletplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// turns lets one call at a time work on a claim, from the kubelet's request to the answer. The
// engine has locks of its own; this covers what the library does around it: it writes a claim's
// metadata after the claim is prepared and removes it after the claim is unprepared, so that
// without turns the metadata of a cancelled prepare could come after its unprepare, and stay.
type turns struct {
	mu    sync.Mutex
	taken map[string]*turn
}

// turn is one claim's; it exists while anybody has it or waits for it.
type turn struct {
	free chan struct{}
	// users have it or wait for it.
	users int
}

// take waits for the turns of all claims and returns what gives them back.
func (t *turns) take(ctx context.Context, uids []string) (func(), error) {
	// In one order for all callers, so that two batches never wait for each other.
	uids = slices.Compact(slices.Sorted(slices.Values(uids)))
	var held []string
	giveBack := func() {
		for _, uid := range held {
			t.leave(uid, true)
		}
	}
	for _, uid := range uids {
		select {
		case <-t.enter(uid).free:
			held = append(held, uid)
		case <-ctx.Done():
			t.leave(uid, false)
			giveBack()
			return nil, fmt.Errorf("wait for another call for claim %s: %w", uid, context.Cause(ctx))
		}
	}
	return giveBack, nil
}

func (t *turns) enter(uid string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken == nil {
		t.taken = map[string]*turn{}
	}
	if t.taken[uid] == nil {
		t.taken[uid] = &turn{free: make(chan struct{}, 1)}
		t.taken[uid].free <- struct{}{}
	}
	t.taken[uid].users++
	return t.taken[uid]
}

func (t *turns) leave(uid string, had bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if had {
		t.taken[uid].free <- struct{}{}
	}
	if t.taken[uid].users--; t.taken[uid].users == 0 {
		delete(t.taken, uid)
	}
}

// claimUIDs reads the UIDs of a request of any version of the service: all have a list "claims"
// of messages with a "uid".
func claimUIDs(req any) []string {
	message, ok := req.(interface{ ProtoReflect() protoreflect.Message })
	if !ok {
		return nil
	}
	m := message.ProtoReflect()
	field := m.Descriptor().Fields().ByName("claims")
	if field == nil || !field.IsList() || field.Message() == nil {
		return nil
	}
	uid := field.Message().Fields().ByName("uid")
	if uid == nil || uid.Kind() != protoreflect.StringKind {
		return nil
	}
	var uids []string
	for list, i := m.Get(field).List(), 0; i < list.Len(); i++ {
		uids = append(uids, list.Get(i).Message().Get(uid).String())
	}
	return uids
}
