package shares

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func TestWithheld(t *testing.T) {
	for release, want := range map[string]string{
		"":            "not known yet",
		"v1.34.4":     "this is 1.34.4",
		"v1.36.9-gke": "this is 1.36.9",
		"v1.37.0-rc1": "",
		"v1.37.2":     "",
		"v2.0.0":      "",
	} {
		var known *version.Version
		if release != "" {
			known = version.MustParseGeneric(release)
		}
		got := Withheld(known)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("release %q: %q, want %q in it", release, got, want)
		}
	}
}
