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
	s.refusedInEveryVersion(header)
}

// refusedInEveryVersion writes claims, templates and classes with a mistake, and without, in each version
// of the API that the cluster serves.
func (s *scene) refusedInEveryVersion(header string) {
	s.Helper()
	groups, err := s.client.Discovery().ServerGroups()
	s.must(err)
	var versions []string
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			if group.Name == resourceapi.GroupName && version.Version != "v1alpha3" {
				versions = append(versions, version.Version)
			}
		}
	}
	if len(versions) < 2 {
		s.Errorf("the cluster serves %v of %s, must be more than one", versions, resourceapi.GroupName)
	}
	for _, version := range versions {
		request := `{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}`
		if version == "v1beta1" {
			request = `{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}`
		}
		for interval, taken := range map[string]bool{"Tiny": false, "Long": true} {
			config := `[{"opaque": {"driver": "` + rig.Driver + `", "parameters": ` + header + `"` + interval + `"}}}}}]`
			spec := `{"devices": {"requests": [` + request + `], "config": ` + config + `}}`
			for path, body := range map[string]string{
				"namespaces/" + s.namespace + "/resourceclaims":         `"kind": "ResourceClaim", "spec": ` + spec,
				"namespaces/" + s.namespace + "/resourceclaimtemplates": `"kind": "ResourceClaimTemplate", "spec": {"spec": ` + spec + `}`,
				"deviceclasses": `"kind": "DeviceClass", "spec": {"config": ` + config + `}`,
			} {
				text := `{"apiVersion": "` + resourceapi.GroupName + "/" + version + `", "metadata": {"generateName": "e2e-"}, ` + body + `}`
				err := s.client.ResourceV1().RESTClient().Post().AbsPath("/apis/"+resourceapi.GroupName+"/"+version+"/"+path).
					Param("dryRun", metav1.DryRunAll).SetHeader("Content-Type", "application/json").Body([]byte(text)).Do(s.Context()).Error()
				switch {
				case taken && err != nil:
					s.Errorf("%s %s without a mistake: %v", version, path, err)
				case !taken && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `"Tiny"`)):
					s.Errorf("%s %s with a mistake: %v", version, path, err)
				}
			}
		}
	}
}
