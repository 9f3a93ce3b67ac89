// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package table converts objects to the tables that kubectl get prints, in the same way for all
// kinds.
package table

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NoValue is the value of a column without meaning for an object.
const NoValue = "-"

// Convertor converts the objects of a kind, and their lists.
type Convertor[T runtime.Object] struct {
	// Columns are the columns. kubectl get -o wide shows those of priority 1.
	Columns []metav1.TableColumnDefinition
	// Cells returns the values of the columns for an object. age is the time since its creation.
	Cells func(obj T, name, age string) ([]any, error)
}

var _ rest.TableConvertor = Convertor[runtime.Object]{}

// ConvertToTable implements rest.TableConvertor.
func (c Convertor[T]) ConvertToTable(_ context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = c.Columns
	}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if item, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = item.GetResourceVersion()
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		of, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("a %T is not a %T", obj, of)
		}
		return c.Cells(of, name, age)
	})
	return table, err
}

// Duration returns a duration as kubectl prints ages. A negative one is printed as 0: the clock of
// the process that has set the time may be ahead.
func Duration(d time.Duration) string { return duration.HumanDuration(max(0, d)) }
