package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// golden are records as release v0.1.0 wrote them on a node, one for each kind of claim, with what
// later releases must still find in them. Step kinds, and names of parameters, are for ever.
func golden() map[string]content {
	return map[string]content{
		"gpu":        {kind: "gpu"},
		"mig":        {kind: "mig", steps: []string{"mig-mode", "mig-instance"}, params: `"profile":14,"profileName":"2g.20gb","start":0,"size":2`},
		"time-slice": {kind: "gpu", steps: []string{"time-slice"}, params: `"interval":"Long"`},
		"mps":        {kind: "gpu", steps: []string{"mps"}, params: `"setting":{"activeThreadPercentage":25,"pinnedMemoryMiB":1024}`},
		"share":      {kind: "gpu", steps: []string{"mps"}, params: `"share":"5f7f8c0e-0000-4000-8000-000000000002"`},
		"imported":   {kind: "gpu"},
	}
}

// content is what is in a record.
type content struct {
	kind  string
	steps []string
	// params is a piece of the last step's parameters.
	params string
}

// goldenUID is the UID of the claim in a file, which its name does not say.
func goldenUID(t *testing.T, data []byte) types.UID {
	t.Helper()
	r, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return r.UID
}

func TestRecordsOfReleases(t *testing.T) {
	files, err := filepath.Glob("testdata/v0.1.0/*.record")
	if err != nil || len(files) != len(golden()) {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".record")
		t.Run(name, func(t *testing.T) {
			want, known := golden()[name]
			data, err := os.ReadFile(file)
			if err != nil || !known {
				t.Fatal(known, err)
			}
			s := open(t)
			uid := goldenUID(t, data)
			if err := os.WriteFile(s.Path(uid), data, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := s.Load(uid)
			if err != nil {
				t.Fatal(err)
			}
			if r.Name != name || r.State != StatePrepared || len(r.Devices) != 1 || r.Devices[0].Kind != want.kind {
				t.Errorf("%+v", r)
			}
			d := r.Devices[0]
			var steps []string
			for _, step := range d.Steps {
				steps = append(steps, step.Kind)
			}
			if diff := cmp.Diff(want.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if n := len(d.Steps); n > 0 && !strings.Contains(string(d.Steps[n-1].Params), want.params) {
				t.Errorf("parameters %s, want %s in them", d.Steps[n-1].Params, want.params)
			}
			// Nothing of it is unknown, and it is written today as it was then.
			if len(r.Unknown)+len(d.Unknown) > 0 {
				t.Errorf("not understood: %s %s", r.Unknown, d.Unknown)
			}
			save(t, s, r)
			again, err := os.ReadFile(s.Path(uid))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(data), string(again)); diff != "" {
				t.Errorf("-golden +written:\n%s", diff)
			}
		})
	}
	if r, err := decode(mustRead(t, "testdata/v0.1.0/imported.record")); err != nil || r.Devices[0].Was != "gpu-7" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := decode(mustRead(t, "testdata/v0.1.0/share.record")); err != nil || r.Devices[0].ShareID == nil || r.Devices[0].MemoryBytes != 20<<30 {
		t.Errorf("%+v, %v", r, err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A later release adds fields to such a record at every level, and this one writes it again: the later
// release finds them.
func TestReleasesKeepEachOthersFields(t *testing.T) {
	for name := range golden() {
		t.Run(name, func(t *testing.T) {
			_, body, _ := strings.Cut(string(mustRead(t, "testdata/v0.1.0/"+name+".record")), "\n")
			later := strings.NewReplacer(
				`{"namespace":"default","name":"`+name+`","uid"`, `{"later":[1,{"a":null}],"namespace":"default","name":"`+name+`","uid"`,
				`{"request":`, `{"laterDevice":"x","request":`,
				`{"kind":"mps"`, `{"laterStep":7,"kind":"mps"`, `{"kind":"mig`, `{"laterStep":7,"kind":"mig`, `{"kind":"time-slice"`, `{"laterStep":7,"kind":"time-slice"`,
			)
			// The claim in a step's parameters is the step's own affair.
			changed := later.Replace(strings.TrimSuffix(body, "\n"))
			r, err := decode(framed(changed))
			if err != nil {
				t.Fatal(err)
			}
			r.State = StateStarted
			written, err := encode(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range []string{`"later":[1,{"a":null}]`, `"laterDevice":"x"`, `"laterStep":7`} {
				if want, got := strings.Count(changed, field), strings.Count(string(written), field); got != want || want == 0 && field != `"laterStep":7` {
					t.Errorf("%s: %d times before and %d after, in %s", field, want, got, written)
				}
			}
		})
	}
}
