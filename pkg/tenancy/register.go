package tenancy

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Records lists the claims that are prepared on this node; journal.Store does.
type Records interface {
	List() ([]*journal.Record, []journal.Bad, error)
}

// Getter reads one namespace's claims; client-go's typed client is one.
type Getter interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*resourceapi.ResourceClaim, error)
}

// Register knows who has what now. It is safe for concurrent use.
type Register struct {
	Records Records
	// Devices are all devices of the node, by name.
	Devices func() map[string]device.Device

	mu   sync.Mutex
	seen map[types.UID]seen
	// room is how many claims may be remembered until those are sought that are gone.
	room int
}

// seen are the pods of a claim when it was last read.
type seen struct {
	pods []Pod
	at   time.Time
}

// keep is how long a claim without a record is remembered: it was read to be prepared.
const keep = 2 * time.Minute

// least is the least room: a node has not many more claims at a time.
const least = 256

// Saw takes in what a claim that was read says about its pods.
func (r *Register) Saw(claim *resourceapi.ResourceClaim) {
	pods := []Pod{}
	for _, c := range claim.Status.ReservedFor {
		if c.APIGroup == "" && c.Resource == "pods" {
			pods = append(pods, Pod{Name: c.Name, UID: c.UID})
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	r.mu.Lock()
	if r.seen == nil {
		r.seen = map[types.UID]seen{}
	}
	r.seen[claim.UID] = seen{pods, time.Now()}
	full := len(r.seen) > max(r.room, least)
	r.mu.Unlock()
	if full {
		r.tidy()
	}
}

// tidy forgets claims that are gone, where nobody asks for tenants.
func (r *Register) tidy() {
	records, _, err := r.Records.List()
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(records)
	// It is twice as many until the next time, so that it costs each claim little.
	r.room = 2 * len(r.seen)
}

// Through takes in what is read by somebody who reads claims anyway.
func (r *Register) Through(g Getter) Getter { return through{g, r} }

type through struct {
	Getter
	register *Register
}

func (t through) Get(ctx context.Context, name string, options metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	claim, err := t.Getter.Get(ctx, name, options)
	if err == nil {
		t.register.Saw(claim)
	}
	return claim, err
}

// Tenants are the devices that claims have.
func (r *Register) Tenants() ([]Device, error) {
	records, _, err := r.Records.List()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(records)
	return Of(records, r.Devices(), func(claim types.UID) []Pod {
		if s, ok := r.seen[claim]; ok {
			return s.pods
		}
		return []Pod{}
	}), nil
}

// forget drops claims that have no record any more. The lock is held.
func (r *Register) forget(records []*journal.Record) {
	known := map[types.UID]bool{}
	for _, record := range records {
		known[record.UID] = true
	}
	for uid, s := range r.seen {
		if !known[uid] && time.Since(s.at) > keep {
			delete(r.seen, uid)
		}
	}
}
