package health_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/health"
)

func TestBuiltinTable(t *testing.T) {
	table := rules(t).Table
	for _, code := range []int{13, 31, 43, 45, 68, 109} {
		if got := table.XID(code).Severity; got != health.Note {
			t.Errorf("XID %d, a program's own fault, is %v", code, got)
		}
	}
	for code, want := range map[int]health.Severity{48: health.Avoid, 79: health.Evict, 94: health.Avoid, 95: health.Evict, 154: health.Ignore, 99999: health.Avoid} {
		if got := table.XID(code).Severity; got != want {
			t.Errorf("XID %d is %v, want %v", code, got, want)
		}
	}
	if table.XID(94).Whole || !table.XID(79).Whole {
		t.Error("XID 94 is of the instance that it names, XID 79 of the GPU")
	}
	for _, name := range health.ActionNames() {
		if got := table.Condition(health.Recovery, name); got.Severity < health.Avoid || got.Do == "" {
			t.Errorf("recovery action %s: %+v", name, got)
		}
	}
	if got := table.Condition(health.Recovery, "unknown-99").Severity; got < health.Avoid {
		t.Errorf("an action that nobody knows is %v", got)
	}
	for _, row := range table.Rows() {
		if row.Means == "" || row.Do == "" || !slices.Contains([]string{"catalog", "kernel", "plugin", "nvml", "ours"}, row.Source) {
			t.Errorf("%s says too little: %+v", row.Of, row.Rule)
		}
		if strings.HasSuffix(row.Means, ".") || strings.HasSuffix(row.Do, ".") {
			t.Errorf("%s: sentences get their stop later", row.Of)
		}
	}
	if n := len(table.Rows()); n < 60 {
		t.Errorf("%d rows", n)
	}
}

func TestOverride(t *testing.T) {
	table := rules(t).Table
	changed, err := table.Override([]byte(`
xids:
- {codes: [63, 64], severity: evict, until: quiet}
- {codes: [4711], severity: note, means: ours}
otherXIDs: {severity: note}
conditions:
- {of: [fabric, memory/remap-pending], severity: avoid}
`))
	if err != nil {
		t.Fatal(err)
	}
	if r := changed.XID(64); r.Severity != health.Evict || r.Until != health.Quiet || !r.Whole || r.Means != table.XID(64).Means {
		t.Errorf("a row that says only what differs gives %+v", r)
	}
	if r := changed.XID(4711); r.Severity != health.Note || r.Means != "ours" {
		t.Errorf("%+v", r)
	}
	if changed.XID(4712).Severity != health.Note || table.XID(4712).Severity != health.Avoid {
		t.Error("other XIDs are not as told, or the table itself was changed")
	}
	if changed.Condition(health.Fabric, "in-progress").Severity != health.Avoid || changed.Condition(health.Memory, "remap-pending").Severity != health.Avoid {
		t.Error("conditions are not as told")
	}
	for text, word := range map[string]string{
		"xids: [{codes: [0], severity: note}]":        "code 0",
		"xids: [{severity: note}]":                    "xids[0]",
		"xids: [{codes: [1], severity: bad}]":         "ignore, note, avoid, evict",
		"xids: [{codes: [1], until: never}]":          "quiet or recovered",
		"conditions: [{of: [xid], severity: note}]":   "conditions[0]",
		"conditions: [{of: [power], severity: note}]": `"power"`,
		"conditions: [{severity: note}]":              "name the conditions",
		"otherXIDs: {until: never}":                   "otherXIDs",
		"more: 1":                                     "more",
		"[":                                           "health table",
	} {
		if _, err := table.Override([]byte(text)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want an error that says %q", text, err, word)
		}
	}
}

func FuzzOverride(f *testing.F) {
	f.Add([]byte("xids:\n- {codes: [79], severity: note}\n"))
	f.Add([]byte("conditions:\n- {of: [memory/], severity: evict}\notherXIDs: {whole: true}\n"))
	table := rules(f).Table
	f.Fuzz(func(t *testing.T, text []byte) {
		changed, err := table.Override(text)
		if err != nil {
			return
		}
		if len(changed.Rows()) < len(table.Rows()) {
			t.Error("rows are missing")
		}
		for _, row := range changed.Rows() {
			if row.Until != health.Quiet && row.Until != health.Recovered || row.Severity < health.Ignore || row.Severity > health.Evict {
				t.Errorf("%+v", row)
			}
		}
	})
}

func TestActions(t *testing.T) {
	for text, a := range map[string]health.Action{
		"none": action(0), "reset": action(1), "reboot-system": action(7), "unknown-8": action(8), "unknown--1": action(-1),
		"not supported": {}, "unreadable": {Supported: true},
	} {
		if a.String() != text {
			t.Errorf("%+v is %q, want %q", a, a, text)
		}
	}
	for value, want := range map[int]bool{0: false, 1: true, 2: false, 4: true, 6: false, 99: false} {
		if action(value).ByReset() != want {
			t.Errorf("action %d by reset: %v", value, !want)
		}
	}
	if (health.Action{}).ByReset() {
		t.Error("an action that is not known asks for a reset")
	}
}
