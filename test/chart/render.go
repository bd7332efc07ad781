package chart

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/cli/values"
	"helm.sh/helm/v4/pkg/getter"
	"helm.sh/helm/v4/pkg/release"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
)

// Values are where the values of a release come from, as in helm's flags.
type Values struct {
	// Files are YAML files, the later over the earlier.
	Files []string
	// Set are assignments such as "image.tag=dev", over all files.
	Set []string
}

// Release names a release and what it is made of.
type Release struct {
	Name      string
	Namespace string
	// Chart is the path of a chart's directory or package.
	Chart  string
	Values Values
	// TakeOwnership makes objects that are there, and are another release's or nobody's, those of this one.
	TakeOwnership bool
	// KeepValues keeps, in an upgrade, the values that the release was given before, under Values.
	KeepValues bool
}

// Rendered is what a release would hold.
type Rendered struct {
	// Manifest is a stream of YAML documents, each with a comment that names its template.
	Manifest string
	// Hooks is the like for objects that are only made at some moment, such as an uninstall.
	Hooks string
	Notes string
}

func (r Release) load() (*chartv2.Chart, map[string]any, error) {
	loaded, err := loader.Load(r.Chart)
	if err != nil {
		return nil, nil, fmt.Errorf("load chart %s: %w", r.Chart, err)
	}
	options := values.Options{ValueFiles: r.Values.Files, Values: r.Values.Set}
	merged, err := options.MergeValues(getter.All(cli.New()))
	if err != nil {
		return nil, nil, fmt.Errorf("values of release %s: %w", r.Name, err)
	}
	return loaded, merged, nil
}

// Render makes a release without a cluster, for a Kubernetes version such as "1.37.0". The
// values are held against the chart's schema and the version against what the chart needs.
func Render(ctx context.Context, r Release, kubeVersion string) (Rendered, error) {
	loaded, merged, err := r.load()
	if err != nil {
		return Rendered{}, err
	}
	version, err := common.ParseKubeVersion(kubeVersion)
	if err != nil {
		return Rendered{}, fmt.Errorf("version %q of Kubernetes: %w", kubeVersion, err)
	}
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace, install.KubeVersion = r.Name, r.Namespace, version
	released, err := install.RunWithContext(ctx, loaded, merged)
	if err != nil {
		return Rendered{}, fmt.Errorf("render %s: %w", r.Chart, err)
	}
	done, err := narrow(released)
	if err != nil {
		return Rendered{}, err
	}
	var hooks strings.Builder
	for _, h := range done.Hooks {
		fmt.Fprintf(&hooks, "---\n# Source: %s\n%s\n", h.Path, h.Manifest)
	}
	return Rendered{Manifest: done.Manifest, Hooks: hooks.String(), Notes: done.Info.Notes}, nil
}

// narrow narrows Helm's result to the one kind of release that it makes of such charts.
func narrow(released release.Releaser) (*releasev1.Release, error) {
	done, ok := released.(*releasev1.Release)
	if !ok {
		return nil, fmt.Errorf("a release of type %T from Helm", released)
	}
	return done, nil
}

// Package writes the chart in dir as <name>-<version>.tgz into directory to and returns its
// path. Empty versions leave those of Chart.yaml. Files in it have the given time, so that
// equal charts are equal packages.
func Package(dir, to, version, appVersion string, at time.Time) (string, error) {
	pack := action.NewPackage()
	pack.Version, pack.AppVersion, pack.Destination, pack.SourceDateEpoch = version, appVersion, to, &at
	path, err := pack.Run(dir, nil)
	if err != nil {
		return "", fmt.Errorf("package chart %s: %w", dir, err)
	}
	return filepath.Clean(path), nil
}
