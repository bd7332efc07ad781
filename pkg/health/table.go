package health

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"sigs.k8s.io/yaml"
)

//go:embed table.yaml
var builtin string

// Rule says what a fault means.
type Rule struct {
	Severity Severity `json:"severity"`
	Until    Until    `json:"until,omitempty"`
	// Whole has the fault count for the GPU even where the driver names an instance.
	Whole bool `json:"whole,omitempty"`
	// Means says what it is, Do what to do about it.
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"`
	// Source is where the classification is from.
	Source string `json:"source,omitempty"`
}

// Table classifies faults.
type Table struct {
	xids       map[int]Rule
	conditions map[string]Rule
	otherXID   Rule
}

// file is the table's form: a row names what it is about and, for an override, only what differs.
type file struct {
	XIDs       []row `json:"xids,omitempty"`
	OtherXIDs  *row  `json:"otherXIDs,omitempty"`
	Conditions []row `json:"conditions,omitempty"`
}

type row struct {
	Codes []int `json:"codes,omitempty"`
	// Of is a kind, or a kind and a code: "memory", "memory/remap-failed".
	Of       []string  `json:"of,omitempty"`
	Severity *Severity `json:"severity,omitempty"`
	Until    *Until    `json:"until,omitempty"`
	Whole    *bool     `json:"whole,omitempty"`
	Means    *string   `json:"means,omitempty"`
	Do       *string   `json:"do,omitempty"`
	Source   *string   `json:"source,omitempty"`
}

// over gives a rule with what the row says in place of the rest.
func (w row) over(r Rule) Rule {
	replace(&r.Severity, w.Severity)
	replace(&r.Until, w.Until)
	replace(&r.Whole, w.Whole)
	replace(&r.Means, w.Means)
	replace(&r.Do, w.Do)
	replace(&r.Source, w.Source)
	return r
}

func replace[T any](to, by *T) {
	if by != nil {
		*to = *by
	}
}

func (w row) check() error {
	if w.Until != nil && *w.Until != Quiet && *w.Until != Recovered {
		return fmt.Errorf("until %q: use %s or %s", *w.Until, Quiet, Recovered)
	}
	return nil
}

// Builtin is the table that comes with the driver.
func Builtin() (*Table, error) {
	t := &Table{xids: map[int]Rule{}, conditions: map[string]Rule{}, otherXID: Rule{Until: Quiet}}
	return t.Override([]byte(builtin))
}

// Override gives the table with the rows of a YAML file in place of its own; a row says only what
// differs. Errors name the row.
func (t *Table) Override(text []byte) (*Table, error) {
	var f file
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, fmt.Errorf("health table: %w", err)
	}
	out := &Table{xids: map[int]Rule{}, conditions: map[string]Rule{}, otherXID: t.otherXID}
	for code, rule := range t.xids {
		out.xids[code] = rule
	}
	for of, rule := range t.conditions {
		out.conditions[of] = rule
	}
	var errs []error
	if f.OtherXIDs != nil {
		errs = append(errs, within("otherXIDs", f.OtherXIDs.check()))
		out.otherXID = f.OtherXIDs.over(out.otherXID)
	}
	for i, w := range f.XIDs {
		at := fmt.Sprintf("xids[%d]", i)
		errs = append(errs, within(at, w.check()), within(at, out.addXIDs(w)))
	}
	for i, w := range f.Conditions {
		at := fmt.Sprintf("conditions[%d]", i)
		errs = append(errs, within(at, w.check()), within(at, out.addConditions(w)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func within(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("health table: %s: %w", where, err)
}

func (t *Table) addXIDs(w row) error {
	if len(w.Codes) == 0 || len(w.Of) > 0 {
		return errors.New("name the XIDs as codes, such as [79]")
	}
	for _, code := range w.Codes {
		if code <= 0 {
			return fmt.Errorf("code %d: XIDs are numbers from 1", code)
		}
		t.xids[code] = w.over(t.XID(code))
	}
	return nil
}

func (t *Table) addConditions(w row) error {
	if len(w.Of) == 0 || len(w.Codes) > 0 {
		return errors.New("name the conditions as of, such as [memory/remap-failed]")
	}
	for _, of := range w.Of {
		kind, code := split(of)
		if !slices.Contains(Kinds(), kind) || kind == XID {
			return fmt.Errorf("%q: use a kind of %v, alone or with /code", of, Kinds()[1:])
		}
		t.conditions[of] = w.over(t.Condition(kind, code))
	}
	return nil
}

func split(of string) (Kind, string) {
	for i := range len(of) {
		if of[i] == '/' {
			return Kind(of[:i]), of[i+1:]
		}
	}
	return Kind(of), ""
}

// XID is the rule of an XID.
func (t *Table) XID(code int) Rule {
	if rule, ok := t.xids[code]; ok {
		return rule
	}
	return t.otherXID
}

// Condition is the rule of a condition: that of its code, else that of its kind.
func (t *Table) Condition(kind Kind, code string) Rule {
	if rule, ok := t.conditions[string(kind)+"/"+code]; ok {
		return rule
	}
	if rule, ok := t.conditions[string(kind)]; ok {
		return rule
	}
	return Rule{Until: Quiet}
}

// Row is a line of the reference page.
type Row struct {
	// Of names the fault: "XID 79", "memory/remap-failed", "other XIDs".
	Of string
	Rule
}

// Rows lists the table: XIDs by number, then all others, then conditions by kind and code.
func (t *Table) Rows() []Row {
	var rows []Row
	var codes []int
	for code := range t.xids {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for _, code := range codes {
		rows = append(rows, Row{Of: "XID " + strconv.Itoa(code), Rule: t.xids[code]})
	}
	rows = append(rows, Row{Of: "any other XID", Rule: t.otherXID})
	var conditions []string
	for of := range t.conditions {
		conditions = append(conditions, of)
	}
	slices.Sort(conditions)
	for _, of := range conditions {
		rows = append(rows, Row{Of: of, Rule: t.conditions[of]})
	}
	return rows
}
