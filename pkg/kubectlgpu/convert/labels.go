package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The node labels of the GPU feature discovery.
const (
	labelProduct = vendor + "gpu.product"
	labelMemory  = vendor + "gpu.memory"
	labelPresent = vendor + "gpu.present"
	labelCount   = vendor + "gpu.count"
	labelMIG     = vendor + "mig.config"
)

// selectors makes selectors of devices from the pod's node selector and required affinity.
func (p *conversion) selectors() {
	for _, label := range slices.Sorted(maps.Keys(p.spec.NodeSelector)) {
		value := p.spec.NodeSelector[label]
		expressions, note, ok := p.requirement(corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
		if ok {
			delete(p.spec.NodeSelector, label)
			p.use(fmt.Sprintf("nodeSelector %s: %s", label, value), expressions, note)
		} else if note != "" {
			p.say("%s", note)
		}
	}
	if len(p.spec.NodeSelector) == 0 {
		p.spec.NodeSelector = nil
	}
	p.affinity()
}

// use adds selectors and says what they stand for.
func (p *conversion) use(what string, expressions []string, note string) {
	for _, e := range expressions {
		p.expressions = append(p.expressions, selector(e))
	}
	switch {
	case len(expressions) > 0 && note == "":
		p.say("%s became a selector of the claim.", what)
	case note != "":
		p.say("%s: %s", what, note)
	default:
		p.say("%s was taken out: a claim finds a node with a GPU by itself.", what)
	}
}

// affinity converts required terms. Terms are alternatives, and selectors are not: several that name
// GPUs have no equal.
func (p *conversion) affinity() {
	if p.spec.Affinity == nil || p.spec.Affinity.NodeAffinity == nil {
		return
	}
	node := p.spec.Affinity.NodeAffinity
	for _, preferred := range node.PreferredDuringSchedulingIgnoredDuringExecution {
		if slices.ContainsFunc(preferred.Preference.MatchExpressions, about) {
			p.say("No equal: a preferred affinity on a GPU label. It was left as it is; in a claim, firstAvailable lists alternatives in order.")
		}
	}
	required := node.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return
	}
	if len(required.NodeSelectorTerms) != 1 {
		if slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return slices.ContainsFunc(t.MatchExpressions, about) }) {
			p.say("No equal: alternatives (nodeSelectorTerms) that name GPU labels. They were left as they are; in a claim, firstAvailable lists alternatives.")
		}
		return
	}
	term := &required.NodeSelectorTerms[0]
	var rest []corev1.NodeSelectorRequirement
	for _, r := range term.MatchExpressions {
		expressions, note, ok := p.requirement(r)
		if !ok {
			rest = append(rest, r)
			if note != "" {
				p.say("%s", note)
			}
			continue
		}
		p.use(fmt.Sprintf("affinity %s %s %s", r.Key, r.Operator, strings.Join(r.Values, ", ")), expressions, note)
	}
	term.MatchExpressions = rest
	if len(rest) == 0 && len(term.MatchFields) == 0 {
		// A term without requirements matches nothing.
		node.RequiredDuringSchedulingIgnoredDuringExecution = nil
		if len(node.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
			p.spec.Affinity.NodeAffinity = nil
		}
		if *p.spec.Affinity == (corev1.Affinity{}) {
			p.spec.Affinity = nil
		}
	}
}

func about(r corev1.NodeSelectorRequirement) bool { return strings.HasPrefix(r.Key, vendor) }

// requirement makes selectors of one requirement on a node label. It is not ok for labels that are
// not about GPUs, and, with a note, for those that have no equal.
func (p *conversion) requirement(r corev1.NodeSelectorRequirement) (expressions []string, note string, ok bool) {
	noEqual := fmt.Sprintf("No equal: node label %s %s %s. It was left as it is.", r.Key, r.Operator, strings.Join(r.Values, ", "))
	switch {
	case !about(r):
		return nil, "", false
	case r.Key == labelPresent || r.Key == labelCount, r.Operator == corev1.NodeSelectorOpExists:
		return nil, "", true
	case r.Key == labelMIG:
		return nil, "taken out: the class of the MIG profile selects the partition, however the node came to have it", true
	case r.Key == labelProduct && r.Operator == corev1.NodeSelectorOpIn:
		return []string{p.product(r.Values...)}, "", true
	case r.Key == labelProduct && r.Operator == corev1.NodeSelectorOpNotIn:
		return []string{"!(" + p.product(r.Values...) + ")"}, "", true
	case r.Key == labelMemory && len(r.Values) == 1:
		return p.sized(r, noEqual)
	}
	return nil, noEqual, false
}

func (p *conversion) sized(r corev1.NodeSelectorRequirement, noEqual string) ([]string, string, bool) {
	mebi, err := strconv.ParseInt(r.Values[0], 10, 64)
	if err != nil || mebi < 0 {
		return nil, noEqual, false
	}
	switch r.Operator {
	case corev1.NodeSelectorOpGt:
		return []string{p.memory(">", mebi)}, "", true
	case corev1.NodeSelectorOpLt:
		return []string{p.memory("<", mebi)}, "", true
	case corev1.NodeSelectorOpIn:
		return []string{p.memory(">=", mebi)}, "became a selector for at least as much: exact sizes differ by driver", true
	}
	return nil, noEqual, false
}
