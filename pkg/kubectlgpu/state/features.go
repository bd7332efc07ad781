package state

import (
	"bytes"
	"context"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// featureMetric has a series for each feature gate of a Kubernetes component, of value 1 where it is on.
const featureMetric = "kubernetes_feature_enabled"

// The object in which a bundle keeps the feature gates.
const (
	featuresVersion = "kubectl-gpu/v1alpha1"
	featuresKind    = "ClusterFeatures"
	featuresField   = "features"
)

// ReadFeatures asks the API server which feature gates it knows, and which are on. What cannot be
// read is named in Unread.
func (s *State) ReadFeatures(ctx context.Context, client rest.Interface) {
	raw, err := client.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err == nil {
		s.Features, err = features(raw)
	}
	if err != nil {
		s.Unread = append(s.Unread, Unread{Kind: "feature gates (/metrics of the API server)", Err: err})
	}
}

// features finds the gates among metrics in the text format.
func features(metrics []byte) (map[string]bool, error) {
	// Of the many thousand lines only those of one metric are parsed.
	var lines bytes.Buffer
	for line := range bytes.Lines(metrics) {
		if bytes.HasPrefix(line, []byte(featureMetric+"{")) {
			lines.Write(line)
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&lines)
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", featureMetric, err)
	}
	out := map[string]bool{}
	for _, m := range families[featureMetric].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "name" {
				out[label.GetValue()] = m.GetUntyped().GetValue() == 1
			}
		}
	}
	return out, nil
}

// FeaturesObject is the feature gates as an object of a file, which Add takes; nil where they are
// not known.
func (s *State) FeaturesObject() runtime.Object {
	if s.Features == nil {
		return nil
	}
	gates := map[string]any{}
	for name, on := range s.Features {
		gates[name] = on
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": featuresVersion, "kind": featuresKind, featuresField: gates}}
}

// addFeatures takes the feature gates from an object of a file. Others are passed over.
func (s *State) addFeatures(o *unstructured.Unstructured) {
	if o.GetAPIVersion() != featuresVersion || o.GetKind() != featuresKind {
		return
	}
	gates, _, _ := unstructured.NestedMap(o.Object, featuresField)
	s.Features = map[string]bool{}
	for name, on := range gates {
		if value, ok := on.(bool); ok {
			s.Features[name] = value
		}
	}
}
