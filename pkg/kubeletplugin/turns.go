package kubeletplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
)

// turns lets one call at a time work on a claim, from the kubelet's request to the answer. The
// engine has locks of its own; this covers what the library does around it: it writes a claim's
// metadata after the claim is prepared and removes it after the claim is unprepared, so that
// without turns the metadata of a cancelled prepare could come after its unprepare, and stay.
type turns struct {
	mu    sync.Mutex
	taken map[types.UID]*turn
}

// turn is one claim's; it exists while anybody has it or waits for it.
type turn struct {
	free chan struct{}
	// users have it or wait for it.
	users int
}

// take waits for the turns of all claims and returns what gives them back.
func (t *turns) take(ctx context.Context, refs []claims.Ref) (func(), error) {
	uids := make([]types.UID, 0, len(refs))
	for _, ref := range refs {
		uids = append(uids, ref.UID)
	}
	// In one order for all callers, so that two batches never wait for each other.
	slices.Sort(uids)
	uids = slices.Compact(uids)
	var held []types.UID
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

func (t *turns) enter(uid types.UID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken == nil {
		t.taken = map[types.UID]*turn{}
	}
	if t.taken[uid] == nil {
		t.taken[uid] = &turn{free: make(chan struct{}, 1)}
		t.taken[uid].free <- struct{}{}
	}
	t.taken[uid].users++
	return t.taken[uid]
}

func (t *turns) leave(uid types.UID, had bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if had {
		t.taken[uid].free <- struct{}{}
	}
	if t.taken[uid].users--; t.taken[uid].users == 0 {
		delete(t.taken, uid)
	}
}

// claimRefs reads the claims of a request of any version of the service: all have a list "claims"
// of messages with the strings "namespace", "name" and "uid".
func claimRefs(req any) []claims.Ref {
	message, ok := req.(interface{ ProtoReflect() protoreflect.Message })
	if !ok {
		return nil
	}
	m := message.ProtoReflect()
	field := m.Descriptor().Fields().ByName("claims")
	if field == nil || !field.IsList() || field.Message() == nil {
		return nil
	}
	text := func(claim protoreflect.Message, name protoreflect.Name) string {
		f := claim.Descriptor().Fields().ByName(name)
		if f == nil || f.Kind() != protoreflect.StringKind {
			return ""
		}
		return claim.Get(f).String()
	}
	var refs []claims.Ref
	for list, i := m.Get(field).List(), 0; i < list.Len(); i++ {
		claim := list.Get(i).Message()
		refs = append(refs, claims.Ref{
			Namespace: text(claim, "namespace"), Name: text(claim, "name"), UID: types.UID(text(claim, "uid")),
		})
	}
	return refs
}
