package explain

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// published tells which values the devices before a selector have of what it looks at.
func published(s *Step) string {
	var parts []string
	for _, name := range names(s.Detail) {
		var values []string
		for _, d := range s.before {
			value := d.Text(name)
			if capacity := d.Capacity(name); !capacity.IsZero() {
				value = capacity.String()
			}
			if value == "" {
				value = "none"
			}
			values = append(values, value)
		}
		if len(values) > 0 && name != "type" {
			parts = append(parts, fmt.Sprintf("%s here: %s", name, distinct(values)))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// names are the attributes and capacities that an expression looks at.
func names(expression string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?:attributes|capacity)\["([^"]+)"\]\.\??(\w+)`).FindAllStringSubmatch(expression, -1) {
		name := m[2]
		if strings.HasSuffix(m[1], "kubernetes.io") {
			name = m[1] + "/" + name
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// change is something that would let the claims fit, in words, and the problem as it is then.
type change struct {
	words string
	then  *problem
}

// nearest finds the first change with which the claims fit: from what time heals to what asks for
// something else, and at last one that helps when everybody else has gone. Empty when none does, or
// none was found in time.
func (p *problem) nearest(ctx context.Context, c counted) string {
	if words := p.helps(ctx, c); words != "" {
		return words
	}
	owners := p.owners(c)
	if len(owners) == 0 {
		return ""
	}
	alone := p.without(owners...)
	c, err := alone.count(ctx)
	if err != nil {
		return ""
	}
	words := alone.helps(ctx, c)
	if words == "" {
		return ""
	}
	return words + ", and wait until " + named(owners)
}

// helps is the first of the single changes with which the claims fit.
func (p *problem) helps(ctx context.Context, c counted) string {
	for _, try := range p.changes(c) {
		if ctx.Err() != nil || p.searches.left <= 0 {
			return ""
		}
		if found, _, err := try.then.fits(ctx); err == nil && found.reason == "" {
			return try.words
		}
	}
	return ""
}

// named says of claims that they end.
func named(owners []state.Owner) string {
	if len(owners) == 1 {
		return "claim " + owners[0].String() + " ends"
	}
	var names []string
	for _, owner := range owners {
		names = append(names, owner.Namespace+"/"+owner.Claim)
	}
	return "claims " + distinct(names) + " end"
}

// changes are those that may help, from what time heals to what asks for something else.
func (p *problem) changes(c counted) []change {
	out := p.waits(c)
	if keys := p.taints(c); keys != "" {
		out = append(out, change{"heal the devices with taints " + keys + ", or tolerate them in the request", p.untainted()})
	}
	for i, r := range c.requests {
		if most := r.most(); !r.want.all && most > 0 && most < r.Want {
			out = append(out, change{fmt.Sprintf("ask for %d instead of %d in request %s", most, r.Want, r.Name), p.edited(i, func(e *resourceapi.ExactDeviceRequest) { e.Count = int64(most) })})
		}
	}
	for _, claim := range p.claims {
		for i, constraint := range claim.Spec.Devices.Constraints {
			if constraint.MatchAttribute != nil {
				out = append(out, change{fmt.Sprintf("leave out the constraint on %s", *constraint.MatchAttribute), p.constrained(claim.Name, i)})
			}
		}
	}
	return append(out, p.others(c)...)
}

// waits are the changes that come by themselves: owners of devices end, one of them or all.
func (p *problem) waits(c counted) []change {
	var out []change
	owners := p.owners(c)
	for _, owner := range owners {
		out = append(out, change{"wait until " + named([]state.Owner{owner}) + ", or end it", p.without(owner)})
	}
	if len(owners) > 1 {
		out = append(out, change{"wait until " + named(owners), p.without(owners...)})
	}
	return out
}

// others are changes that ask for something else.
func (p *problem) others(c counted) []change {
	var out []change
	for i, r := range c.requests {
		for j, selector := range r.want.selectors {
			if selector.CEL != nil {
				out = append(out, change{fmt.Sprintf("loosen selector %s of request %s", selector.CEL.Expression, r.Name), p.edited(i, func(e *resourceapi.ExactDeviceRequest) {
					e.Selectors = slices.Delete(slices.Clone(e.Selectors), j, j+1)
				})})
			}
		}
		for _, class := range p.state.Classes {
			if class.Name != r.Class {
				out = append(out, change{fmt.Sprintf("ask for class %s instead of %s in request %s", class.Name, r.Class, r.Name), p.edited(i, func(e *resourceapi.ExactDeviceRequest) { e.DeviceClassName = class.Name })})
			}
		}
	}
	return out
}

// most is how many devices a request could have: what its decisive step leaves.
func (r Request) most() int {
	if s := r.decisive(); s != nil {
		return s.Left
	}
	return len(r.left)
}

// owners are the claims that hold devices of this node's, those that hold the most first.
func (p *problem) owners(counted) []state.Owner {
	held := map[string]int{}
	by := map[string]state.Owner{}
	for _, d := range p.seen().devices {
		for _, o := range d.Exclusive() {
			key := o.Namespace + "/" + o.Claim
			held[key]++
			by[key] = o
		}
	}
	keys := slices.Sorted(maps.Keys(held))
	slices.SortStableFunc(keys, func(a, b string) int { return held[b] - held[a] })
	const most = 16
	var out []state.Owner
	for _, key := range keys[:min(most, len(keys))] {
		out = append(out, by[key])
	}
	return out
}

func (p *problem) taints(c counted) string {
	var keys []string
	for _, r := range c.requests {
		for _, s := range r.Steps {
			if s.Kind == StepTaint {
				keys = append(keys, s.Detail)
			}
		}
	}
	return distinct(keys)
}

// with gives the problem with another state and other claims.
func (p *problem) with(s *state.State, claims []*resourceapi.ResourceClaim) *problem {
	out := *p
	out.state, out.claims = s, claims
	if s != p.state {
		out.looked = nil
	}
	return &out
}

// without is the problem when owners have gone.
func (p *problem) without(owners ...state.Owner) *problem {
	s := *p.state
	s.Claims = slices.DeleteFunc(slices.Clone(s.Claims), func(c *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Namespace == c.Namespace && o.Claim == c.Name })
	})
	return p.with(&s, p.claims)
}

func (p *problem) untainted() *problem {
	s := *p.state
	s.TaintRules = nil
	s.Slices = nil
	for _, slice := range p.state.Slices {
		clean := slice.DeepCopy()
		for i := range clean.Spec.Devices {
			clean.Spec.Devices[i].Taints = nil
		}
		s.Slices = append(s.Slices, clean)
	}
	return p.with(&s, p.claims)
}

// edited is the problem with another request; alternatives are left as they are.
func (p *problem) edited(at int, edit func(*resourceapi.ExactDeviceRequest)) *problem {
	claims := copies(p.claims)
	n := 0
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly == nil {
				n += len(r.FirstAvailable)
				continue
			}
			if n == at {
				edit(r.Exactly)
			}
			n++
		}
	}
	return p.with(p.state, claims)
}

func (p *problem) constrained(claim string, at int) *problem {
	claims := copies(p.claims)
	for _, c := range claims {
		if c.Name == claim {
			c.Spec.Devices.Constraints = slices.Delete(c.Spec.Devices.Constraints, at, at+1)
		}
	}
	return p.with(p.state, claims)
}

func copies(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	out := make([]*resourceapi.ResourceClaim, len(claims))
	for i, c := range claims {
		out[i] = c.DeepCopy()
	}
	return out
}
