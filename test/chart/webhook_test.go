package chart

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
)

func webhookObjects(t *testing.T, set ...string) []runtime.Object {
	t.Helper()
	return decode(t, render(t, valuesFrom("", append(set, "webhook.enabled=true")...), reference).Manifest)
}

// Who does not ask for it gets nothing of it.
func TestWebhookIsOffByDefault(t *testing.T) {
	objects := decode(t, render(t, Values{}, reference).Manifest)
	if n := len(every[*admissionv1.ValidatingWebhookConfiguration](objects)) + len(every[*appsv1.Deployment](objects)) + len(every[*corev1.Service](objects)); n != 0 {
		t.Errorf("%d objects of the webhook", n)
	}
}

// The certificate that the chart makes is the one that the API server asks for.
func TestWebhookCertificate(t *testing.T) {
	objects := webhookObjects(t)
	service, secret := one[*corev1.Service](t, objects), one[*corev1.Secret](t, objects)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range one[*admissionv1.ValidatingWebhookConfiguration](t, objects).Webhooks {
		client := hook.ClientConfig
		if client.Service.Name != service.Name || client.Service.Namespace != service.Namespace || *client.Service.Port != service.Spec.Ports[0].Port {
			t.Errorf("%s asks %+v", hook.Name, client.Service)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(client.CABundle) {
			t.Fatalf("%s has no authority", hook.Name)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		host := client.Service.Name + "." + client.Service.Namespace + ".svc"
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s would not believe %s: %v", hook.Name, host, err)
		}
	}
	mount := one[*appsv1.Deployment](t, objects).Spec.Template.Spec.Volumes[0].Secret
	if mount.SecretName != secret.Name {
		t.Errorf("the pods mount %s, the chart makes %s", mount.SecretName, secret.Name)
	}
}

func TestWebhookOtherCertificates(t *testing.T) {
	objects := webhookObjects(t, "webhook.tls.mode=secret", "webhook.tls.secret.name=mine", "webhook.tls.secret.caBundle=Q0E=")
	if n := len(every[*corev1.Secret](objects)); n != 0 {
		t.Errorf("%d secrets beside the given one", n)
	}
	if name := one[*appsv1.Deployment](t, objects).Spec.Template.Spec.Volumes[0].Secret.SecretName; name != "mine" {
		t.Errorf("the pods mount %s", name)
	}
	if ca := one[*admissionv1.ValidatingWebhookConfiguration](t, objects).Webhooks[0].ClientConfig.CABundle; string(ca) != "CA" {
		t.Errorf("authority %q", ca)
	}

	kinds := func(set ...string) []string {
		objects := webhookObjects(t, append(set, "webhook.tls.mode=cert-manager")...)
		hooks := one[*admissionv1.ValidatingWebhookConfiguration](t, objects)
		if name := hooks.Annotations["cert-manager.io/inject-ca-from"]; name != "gpu-dra-driver/gpu-dra-driver-webhook" {
			t.Errorf("the authority comes from %q", name)
		}
		var out []string
		for _, o := range every[*unstructured.Unstructured](objects) {
			out = append(out, o.GetKind())
		}
		return out
	}
	if diff := cmp.Diff([]string{"Certificate", "Issuer"}, kinds()); diff != "" {
		t.Errorf("own issuer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Certificate"}, kinds("webhook.tls.certManager.issuerName=corp", "webhook.tls.certManager.issuerType=ClusterIssuer")); diff != "" {
		t.Errorf("given issuer (-want +got):\n%s", diff)
	}
	err := refusal(t, valuesFrom("", "webhook.enabled=true", "webhook.tls.mode=secret"))
	for _, want := range []string{"webhook.tls.secret.name", "webhook.tls.secret.caBundle"} {
		if !strings.Contains(err, want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// The pod can do nothing: no root, no token, no host, no way out.
func TestWebhookPrivileges(t *testing.T) {
	objects := webhookObjects(t, "webhook.networkPolicy.enabled=true")
	pod := one[*appsv1.Deployment](t, objects).Spec.Template
	if *pod.Spec.AutomountServiceAccountToken || pod.Spec.HostNetwork || !*pod.Spec.SecurityContext.RunAsNonRoot || *pod.Spec.SecurityContext.RunAsUser == 0 {
		t.Errorf("%+v", pod.Spec)
	}
	container := pod.Spec.Containers[0].SecurityContext
	if *container.AllowPrivilegeEscalation || !*container.ReadOnlyRootFilesystem || cmp.Diff([]corev1.Capability{"ALL"}, container.Capabilities.Drop) != "" {
		t.Errorf("%+v", container)
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s is of the host", v.Name)
		}
	}
	closed := one[*networkingv1.NetworkPolicy](t, objects).Spec
	if len(closed.Egress) != 0 || len(closed.PolicyTypes) != 2 || len(closed.Ingress) != 1 {
		t.Errorf("%+v", closed)
	}
	for _, selector := range []map[string]string{
		closed.PodSelector.MatchLabels, one[*corev1.Service](t, objects).Spec.Selector,
		one[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector.MatchLabels,
		one[*appsv1.Deployment](t, objects).Spec.Selector.MatchLabels,
	} {
		if diff := cmp.Diff(pod.Labels, selector); diff != "" {
			t.Errorf("selector (-labels +selector):\n%s", diff)
		}
	}
	plugin := one[*appsv1.DaemonSet](t, objects).Spec.Selector.MatchLabels
	if plugin["app.kubernetes.io/component"] == pod.Labels["app.kubernetes.io/component"] {
		t.Error("the plugin's DaemonSet would own the webhook's pods")
	}
}

// opaque is a configuration for a driver.
func opaque(driver string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte("{}")}}}
}

// Only objects with a configuration for this driver wait for the webhook.
func TestWebhookIsAskedOnlyForOurs(t *testing.T) {
	const ours, foreign = "gpu.example.com", "nic.example.com"
	spec := func(drivers ...string) resourcev1.ResourceClaimSpec {
		var s resourcev1.ResourceClaimSpec
		for _, d := range drivers {
			s.Devices.Config = append(s.Devices.Config, resourcev1.DeviceClaimConfiguration{DeviceConfiguration: opaque(d)})
		}
		return s
	}
	class := func(drivers ...string) *resourcev1.DeviceClass {
		c := &resourcev1.DeviceClass{}
		for _, d := range drivers {
			c.Spec.Config = append(c.Spec.Config, resourcev1.DeviceClassConfiguration{DeviceConfiguration: opaque(d)})
		}
		return c
	}
	objects := map[string]func(...string) runtime.Object{
		"resourceclaims": func(d ...string) runtime.Object { return &resourcev1.ResourceClaim{Spec: spec(d...)} },
		"resourceclaimtemplates": func(d ...string) runtime.Object {
			return &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec(d...)}}
		},
		"deviceclasses": func(d ...string) runtime.Object { return class(d...) },
	}
	hooks := one[*admissionv1.ValidatingWebhookConfiguration](t, webhookObjects(t, "driverName="+ours)).Webhooks
	if len(hooks) != len(objects) {
		t.Fatalf("%d webhooks", len(hooks))
	}
	for _, hook := range hooks {
		rule := hook.Rules[0]
		if diff := cmp.Diff([]string{"v1", "v1beta2", "v1beta1"}, rule.APIVersions); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
		operations := []admissionv1.OperationType{admissionv1.Create}
		if rule.Resources[0] == "deviceclasses" {
			// Of the three the only one whose spec changes.
			operations = append(operations, admissionv1.Update)
		}
		if diff := cmp.Diff(operations, rule.Operations); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", hook.Name, diff)
		}
		of := objects[rule.Resources[0]]
		for _, c := range []struct {
			drivers []string
			want    bool
		}{{nil, false}, {[]string{foreign}, false}, {[]string{ours}, true}, {[]string{foreign, ours}, true}} {
			if got := asked(t, hook, of(c.drivers...)); got != c.want {
				t.Errorf("%s with configurations for %q: asked %t", hook.Name, c.drivers, got)
			}
		}
	}
}

// asked tells whether the API server would ask the webhook about a new object.
func asked(t *testing.T, hook admissionv1.ValidatingWebhook, object runtime.Object) bool {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	var conditions []cel.ExpressionAccessor
	for i := range hook.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&hook.MatchConditions[i]))
	}
	evaluator := compiler.CompileCondition(conditions, cel.OptionalVariableDeclarations{}, environment.NewExpressions)
	for _, err := range evaluator.CompilationErrors() {
		t.Fatal(err)
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	gvr := resourcev1.SchemeGroupVersion.WithResource(hook.Rules[0].Resources[0])
	attributes := admission.NewAttributesRecord(object, nil, kinds[0], "", "object", gvr, "", admission.Create, nil, false, nil)
	versioned, err := admission.NewVersionedAttributes(attributes, kinds[0], admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	if err != nil {
		t.Fatal(err)
	}
	result := matchconditions.NewMatcher(evaluator, hook.FailurePolicy, "webhook", "validating", hook.Name).Match(t.Context(), versioned, nil, nil)
	if result.Error != nil {
		t.Fatal(result.Error)
	}
	return result.Matches
}
