package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// problem is claims that are to be given devices of one node.
type problem struct {
	state     *state.State
	node      *corev1.Node
	claims    []*resourceapi.ResourceClaim
	match     *matcher
	allocator *allocation.Allocator
	searches  *budget

	looked *sight
}

// sight is what is seen of a state: it is worked out once for all questions.
type sight struct {
	devices    []state.Device
	counters   state.Counters
	incomplete []state.Incomplete
}

// seen looks at the state.
func (p *problem) seen() *sight {
	if p.looked == nil {
		p.looked = &sight{devices: p.state.Devices(), incomplete: p.state.Incomplete()}
		p.looked.counters = p.state.CountersOf(p.looked.devices)
	}
	return p.looked
}

// Request is what became of one request, or one alternative of it, on a node.
type Request struct {
	Claim string `json:"claim"`
	Name  string `json:"name"`
	Class string `json:"class"`
	// Want is the number of devices asked for.
	Want int `json:"want"`
	// Devices is what the node publishes.
	Devices int    `json:"devices"`
	Steps   []Step `json:"steps,omitempty"`
	// Reason says why it cannot be met; empty when counting finds no reason.
	Reason string `json:"reason,omitempty"`

	left []state.Device
	want want
}

// decisive is the step that leaves too few; nil for none.
func (r Request) decisive() *Step {
	for i := range r.Steps {
		if r.Steps[i].Decisive {
			return &r.Steps[i]
		}
	}
	return nil
}

// counted is what counting says of a node.
type counted struct {
	requests []Request
	// reason is why the claims cannot fit; empty when they may.
	reason string
	// at is the request that it is about; -1 for all of them together.
	at int
}

func newMatcher() *matcher {
	const programs = 1000
	return &matcher{cache: cel.NewCache(programs, cel.Features{EnableConsumableCapacity: true})}
}

// count takes all steps of all requests.
func (p *problem) count(ctx context.Context) (counted, error) {
	devices, incomplete := p.seen().devices, p.seen().incomplete
	for _, i := range incomplete {
		devices = slices.DeleteFunc(slices.Clone(devices), func(d state.Device) bool { return d.Driver == i.Driver && d.Pool == i.Pool })
	}
	c := counted{at: -1}
	for _, claim := range p.claims {
		from := len(c.requests)
		if err := p.countClaim(ctx, claim, devices, &c); err != nil {
			return c, err
		}
		if c.reason == "" {
			c.constraints(claim, from)
		}
	}
	if c.reason == "" {
		c.together(p.seen().counters)
	}
	if c.reason != "" && len(incomplete) > 0 {
		c.reason = incomplete[0].String()
	}
	return c, nil
}

func (p *problem) countClaim(ctx context.Context, claim *resourceapi.ResourceClaim, devices []state.Device, c *counted) error {
	for _, r := range claim.Spec.Devices.Requests {
		var wants []want
		if r.Exactly != nil {
			wants = []want{exactly(r)}
		}
		for _, sub := range r.FirstAvailable {
			wants = append(wants, alternative(r, sub))
		}
		var reasons []string
		for _, w := range wants {
			request, err := p.request(ctx, claim, w, devices)
			if err != nil {
				return err
			}
			c.requests = append(c.requests, request)
			if request.Reason != "" {
				reasons = append(reasons, request.Reason)
			}
		}
		if len(reasons) == len(wants) && c.reason == "" {
			c.reason, c.at = strings.Join(reasons, "; and "), len(c.requests)-len(wants)
		}
	}
	return nil
}

func (p *problem) request(ctx context.Context, claim *resourceapi.ResourceClaim, w want, devices []state.Device) (Request, error) {
	s, err := p.sift(ctx, w, devices)
	if err != nil {
		return Request{}, err
	}
	r := Request{Claim: claim.Name, Name: w.name, Class: w.class, Want: s.need, Devices: len(devices), Steps: s.steps, left: s.left, want: w}
	if s.judge() {
		r.Reason = r.words()
		return r, nil
	}
	// Partitions of one GPU take from the same counters; what is left bounds how many fit.
	if most := fitCounters(p.seen().counters, s.left); most < s.need && !w.admin {
		r.Steps = append(r.Steps, Step{Kind: StepCounter, Detail: "what is left of the GPUs' counters", Removed: len(s.left) - most, Left: most, Decisive: true, before: s.left})
		r.Reason = r.words()
	}
	return r, nil
}

// fitCounters bounds how many of some devices can be had at once.
func fitCounters(counters state.Counters, devices []state.Device) int {
	free := 0
	sets := map[[2]string][]state.Device{}
	for _, d := range devices {
		if len(d.Spec.ConsumesCounters) == 0 {
			free++
			continue
		}
		// A device that takes from two sets needs both: counting it with the first is enough for a bound.
		key := [2]string{d.Pool, d.Spec.ConsumesCounters[0].CounterSet}
		sets[key] = append(sets[key], d)
	}
	for key, of := range sets {
		free += counters.AtMost(key[1], of)
	}
	return free
}

// words says why a request cannot be met.
func (r Request) words() string {
	s := r.decisive()
	lead := fmt.Sprintf("request %s wants %s of class %s, ", r.Name, number(r.Want), r.Class)
	if r.Devices == 0 {
		return lead + "the node publishes no devices"
	}
	switch s.Kind {
	case StepClass:
		return lead + fmt.Sprintf("%s of the node's %d devices %s of that class", number(s.Left), r.Devices, are(s.Left))
	case StepSelector:
		return lead + fmt.Sprintf("selector %s leaves %s of %d%s", s.Detail, number(s.Left), s.Left+s.Removed, published(s))
	case StepCapacity:
		return lead + fmt.Sprintf("%s have the capacity asked for", number(s.Left))
	case StepTaint:
		return lead + fmt.Sprintf("%s %s left without those with taints that it does not tolerate (%s)", number(s.Left), are(s.Left), s.Detail)
	case StepInUse:
		return lead + fmt.Sprintf("%s %s free of %d: in use by %s", number(s.Left), are(s.Left), s.Left+s.Removed, s.Detail)
	case StepCounter:
		return lead + fmt.Sprintf("%s more fit at once (%s)", number(s.Left), s.Detail)
	}
	return lead + fmt.Sprintf("no more than %s have an equal %s", number(s.Left), s.Detail)
}

// are is the verb of a number of devices.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func number(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// constraints finds a matchAttribute that no group of devices can meet.
func (c *counted) constraints(claim *resourceapi.ResourceClaim, from int) {
	for _, constraint := range claim.Spec.Devices.Constraints {
		if constraint.MatchAttribute == nil {
			continue
		}
		attribute := string(*constraint.MatchAttribute)
		var concerned []int
		total := 0
		for i := from; i < len(c.requests); i++ {
			r := c.requests[i]
			if strings.Contains(r.Name, "/") {
				return // Which alternative it becomes is for the allocator to find out.
			}
			if len(constraint.Requests) == 0 || slices.Contains(constraint.Requests, r.Name) {
				concerned = append(concerned, i)
				total += r.Want
			}
		}
		best, value := c.largest(concerned, attribute)
		if len(concerned) == 0 || best >= total {
			continue
		}
		r := &c.requests[concerned[0]]
		r.Steps = append(r.Steps, Step{Kind: StepConstraint, Detail: attribute, Removed: len(r.left) - best, Left: best, Decisive: true, before: r.left})
		r.Reason = fmt.Sprintf("%s of class %s with an equal %s are wanted, the largest group has %s", number(total), r.Class, attribute, number(best))
		if value == "" {
			r.Reason = fmt.Sprintf("%s of class %s with an equal %s are wanted, no device that is left has that attribute", number(total), r.Class, attribute)
		}
		c.reason, c.at = r.Reason, concerned[0]
		return
	}
}

// largest is the size and the value of the largest group of devices that some requests leave.
func (c *counted) largest(requests []int, attribute string) (int, string) {
	groups := map[string]map[state.ID]bool{}
	for _, i := range requests {
		for _, d := range c.requests[i].left {
			value := valueOf(d, attribute)
			if value == "" {
				continue
			}
			if groups[value] == nil {
				groups[value] = map[state.ID]bool{}
			}
			groups[value][d.ID] = true
		}
	}
	best, at := 0, ""
	for value, members := range groups {
		if len(members) > best || len(members) == best && value < at {
			best, at = len(members), value
		}
	}
	return best, at
}

// together finds that requests that can each be met compete for the same devices.
func (c *counted) together(counters state.Counters) {
	total, all := 0, map[state.ID]state.Device{}
	for _, r := range c.requests {
		if strings.Contains(r.Name, "/") || r.want.admin {
			return
		}
		total += r.Want
		for _, d := range r.left {
			if d.Shared() {
				return
			}
			all[d.ID] = d
		}
	}
	var devices []state.Device
	for _, d := range all {
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b state.Device) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
	if most := fitCounters(counters, devices); most < total {
		c.reason = fmt.Sprintf("each request can be met by itself, but all of them want %d devices and %d fit at once", total, most)
	}
}

// errNoTime says that the search for a combination was ended.
var errNoTime = errors.New("the search was ended")

// budget is how long allocators may search, all together.
type budget struct{ left time.Duration }

// bounded gives a context for one search; done is to be called when it has ended.
func (b *budget) bounded(ctx context.Context) (bounded context.Context, done func()) {
	begun := time.Now()
	bounded, cancel := context.WithTimeout(ctx, b.left)
	return bounded, func() {
		cancel()
		b.left -= time.Since(begun)
	}
}

// fits asks the allocator, unless counting shows that it cannot be.
func (p *problem) fits(ctx context.Context) (counted, []resourceapi.AllocationResult, error) {
	c, err := p.count(ctx)
	if err != nil || c.reason != "" {
		return c, nil, err
	}
	return p.search(ctx, c)
}

// search asks the allocator about what counting finds possible.
func (p *problem) search(ctx context.Context, c counted) (counted, []resourceapi.AllocationResult, error) {
	ctx, done := p.searches.bounded(ctx)
	defer done()
	cluster := allocation.Cluster{Slices: p.state.Tainted(), Classes: p.state.Classes, Claims: p.state.Claims}
	results, err := p.allocator.Attempt(ctx, cluster, p.node, p.claims...)
	switch {
	case ctx.Err() != nil:
		return c, nil, errNoTime
	case err != nil:
		return c, nil, err
	case results == nil:
		c.reason = "each request can be met by itself, but no combination of devices meets all requests and constraints"
	}
	return c, results, nil
}
