package monitoring

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// checkSchema holds a dashboard, its panels and its queries against Grafana's own schema.
func checkSchema(text string) error {
	known := cog.NewRuntime()
	known.RegisterPanelcfgVariant(stat.VariantConfig())
	known.RegisterPanelcfgVariant(table.VariantConfig())
	known.RegisterPanelcfgVariant(timeseries.VariantConfig())
	known.RegisterDataqueryVariant(prometheus.VariantConfig())
	var d grafana.Dashboard //nolint:staticcheck // the form that every Grafana reads; the newer one is for new ones alone
	err := d.UnmarshalJSONStrict([]byte(text))
	// It gives an empty list for none.
	if found := (cog.BuildErrors{}); errors.As(err, &found) && len(found) == 0 {
		err = nil
	}
	return errors.Join(err, d.Validate())
}

// The dashboard has no member that Grafana does not know, none of another type, and none is missing.
func TestDashboardByGrafanasSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkSchema(string(text)); err != nil {
		t.Error(err)
	}
	for what, change := range map[string][2]string{
		"a member of a panel that nobody knows":   {`"gridPos"`, `"gridPosition"`},
		"a query's text under another name":       {`"expr"`, `"query"`},
		"a member of another type":                {`"schemaVersion": `, `"schemaVersion": [], "version": `},
		"a unit where it does not belong":         {`"fieldConfig"`, `"fieldConfiguration"`},
		"a member of the whole that nobody knows": {`"templating"`, `"variables"`},
	} {
		changed := strings.ReplaceAll(string(text), change[0], change[1])
		if changed == string(text) {
			t.Errorf("%s: the dashboard has no %s", what, change[0])
		}
		if checkSchema(changed) == nil {
			t.Errorf("%s is taken", what)
		}
	}
}
