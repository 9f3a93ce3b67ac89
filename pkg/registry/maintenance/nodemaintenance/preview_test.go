// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// fakePreviewer records the requests, and returns a preview with one wave.
type fakePreviewer struct {
	err   error
	asked []*v1alpha1.NodeMaintenance
}

// Preview implements Previewer.
func (p *fakePreviewer) Preview(
	_ context.Context, nm *v1alpha1.NodeMaintenance,
) (*v1alpha1.NodeMaintenancePreview, error) {
	p.asked = append(p.asked, nm)
	return &v1alpha1.NodeMaintenancePreview{
		ObjectMeta: metav1.ObjectMeta{Name: nm.Name},
		Waves:      []v1alpha1.PreviewWave{{Index: 2, PodType: v1alpha1.PodTypeStatic, PodCount: 7}},
	}, p.err
}

func TestPreview(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	for _, name := range []string{"a", "b"} {
		r.mustCreate(ann, newMaintenance(t, name))
	}
	get := func(name string) (*v1alpha1.NodeMaintenancePreview, error) {
		out, err := r.storage.Preview.Get(r.ctx(bob, "preview"), name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return out.(*v1alpha1.NodeMaintenancePreview), nil
	}
	out, err := get("b")
	if err != nil {
		t.Fatal(err)
	}
	if out.Name != "b" || len(out.Waves) != 1 || out.Waves[0].PodType != v1alpha1.PodTypeStatic ||
		out.Waves[0].PodCount != 7 {
		t.Errorf("got %+v", out)
	}
	// The previewer gets the object as it is stored, with defaults and the requester.
	if asked := r.previewer.asked[0]; asked.Name != "b" || len(asked.Spec.DrainPlan) != 12 ||
		asked.Spec.RequestedBy.Username != "ann" {
		t.Errorf("previewed %+v", asked)
	}
	if _, err := get("c"); !apierrors.IsNotFound(err) || len(r.previewer.asked) != 1 {
		t.Errorf("a maintenance that does not exist: %v", err)
	}
	r.previewer.err = errors.New("no")
	if _, err := get("a"); !errors.Is(err, r.previewer.err) {
		t.Errorf("the error of the previewer became %v", err)
	}
	if stored := r.get("a"); len(stored.Status.NodeStatuses) > 0 || stored.Generation != 1 {
		t.Errorf("the preview has changed the maintenance: %+v", stored)
	}
}

// TestPreviewOfAPause checks that a preview says that it is about the time after a resume.
func TestPreviewOfAPause(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
	preview := func() []string {
		recorder := &warnings{}
		ctx := warning.WithWarningRecorder(r.ctx(bob, "preview"), recorder)
		must.Get(r.storage.Preview.Get(ctx, "a", &metav1.GetOptions{}))(t)
		return recorder.texts
	}
	is.Equal(t, len(preview()), 0, "warnings without a pause")
	r.mustUpdate(ann, "a", pause)
	texts := preview()
	is.True(t, len(texts) == 1 && strings.Contains(texts[0], "kubectl maintenance resume a"), "got the warnings %q", texts)
}

// warnings records the warnings of a response.
type warnings struct{ texts []string }

func (w *warnings) AddWarning(_, text string) { w.texts = append(w.texts, text) }

func TestPreviewInATable(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	table, err := r.storage.Preview.ConvertToTable(r.ctx(bob, "preview"),
		&v1alpha1.NodeMaintenancePreview{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, nil)
	if err != nil || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "a" {
		t.Errorf("table is %+v (%v)", table, err)
	}
}
