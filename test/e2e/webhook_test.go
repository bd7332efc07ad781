//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// configured is a claim's spec with one configuration for a driver.
func configured(driver, parameters string) resourceapi.ResourceClaimSpec {
	opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: driver}
	opaque.Parameters.Raw = []byte(parameters)
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: rig.Driver}}},
		Config:   []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque}}},
	}}
}

// TestWebhook switches the webhook on: what no node could prepare is refused when it is written,
// with the field, and only that.
func TestWebhook(t *testing.T) {
	s := begin(t)
	s.with(rig.Values{"webhook.enabled": "true", "webhook.replicas": "1"})
	claims := s.client.ResourceV1().ResourceClaims(s.namespace)
	templates := s.client.ResourceV1().ResourceClaimTemplates(s.namespace)
	classes := s.client.ResourceV1().DeviceClasses()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	name := metav1.ObjectMeta{GenerateName: "e2e-"}
	kinds := map[string]func(spec resourceapi.ResourceClaimSpec) error{
		"claim": func(spec resourceapi.ResourceClaimSpec) error {
			_, err := claims.Create(s.Context(), &resourceapi.ResourceClaim{ObjectMeta: name, Spec: spec}, dry)
			return err
		},
		"template": func(spec resourceapi.ResourceClaimSpec) error {
			template := &resourceapi.ResourceClaimTemplate{ObjectMeta: name, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
			_, err := templates.Create(s.Context(), template, dry)
			return err
		},
		"class": func(spec resourceapi.ResourceClaimSpec) error {
			class := &resourceapi.DeviceClass{ObjectMeta: name}
			class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: spec.Devices.Config[0].DeviceConfiguration}}
			_, err := classes.Create(s.Context(), class, dry)
			return err
		},
	}
	const header = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":`
	wrong, right := configured(rig.Driver, header+`"Tiny"}}}`), configured(rig.Driver, header+`"Long"}}}`)
	// The API server takes a moment to learn of a new webhook.
	s.must(rig.Wait(s.Context(), time.Minute, "the webhook is asked", func(context.Context) (string, error) {
		if err := kinds["claim"](wrong); err == nil {
			return "a claim with a mistake is taken", nil
		} else if !apierrors.IsInvalid(err) {
			return err.Error(), nil
		}
		return "", nil
	}))
	for kind, create := range kinds {
		err := create(wrong)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `"Tiny"`) || !strings.Contains(err.Error(), "config[0].opaque.parameters") {
			t.Errorf("%s with a mistake: %v", kind, err)
		}
		if err := create(right); err != nil {
			t.Errorf("%s without one: %v", kind, err)
		}
		if err := create(configured("nic.example.com", `{"what":"ever"}`)); err != nil {
			t.Errorf("%s of another driver: %v", kind, err)
		}
	}
}
