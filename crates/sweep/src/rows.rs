//! Rows of a sweep as Parquet: one row for each run, with every setting as a column.

use crate::grid::Grid;
use crate::setting::Source;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::record::Field;
use parquet::schema::types::Type;
use std::fs::File;
use std::sync::Arc;
use toml::Value;

/// One run of a point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The point, from 0.
    pub point: u64,
    /// The repeat, from 0.
    pub repeat: u32,
    /// Its seed.
    pub seed: u64,
    /// The values of the grid's settings.
    pub values: Vec<Value>,
    /// The values of the grid's metrics; `NaN` where the result has none.
    pub metrics: Vec<f64>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Why it failed.
    pub error: Option<String>,
}

// Columns that every grid has.
const POINT: &str = "point";
const REPEAT: &str = "repeat";
const SEED: &str = "seed";
const SECONDS: &str = "seconds";
const ERROR: &str = "error";

/// What a column holds.
#[derive(Clone, Copy)]
enum Column {
    Point,
    Repeat,
    Seed,
    Setting(usize),
    Metric(usize),
    Seconds,
    Error,
}

/// The columns of a grid's rows, with their names and types.
fn columns(grid: &Grid) -> Vec<(Column, String, Physical)> {
    let mut columns = vec![
        (Column::Point, POINT.to_owned(), Physical::INT64),
        (Column::Repeat, REPEAT.to_owned(), Physical::INT64),
        (Column::Seed, SEED.to_owned(), Physical::INT64),
    ];
    for (index, setting) in grid.settings.iter().enumerate() {
        let physical = match &setting.values {
            Source::Drawn(_) => Physical::DOUBLE,
            Source::Listed(values) => match values.first() {
                Some(Value::String(_)) => Physical::BYTE_ARRAY,
                Some(Value::Boolean(_)) => Physical::BOOLEAN,
                _ => Physical::DOUBLE,
            },
        };
        columns.push((Column::Setting(index), free(&setting.column, "setting", &columns), physical));
    }
    for (index, metric) in grid.metrics.iter().enumerate() {
        columns.push((Column::Metric(index), free(metric, "metric", &columns), Physical::DOUBLE));
    }
    columns.push((Column::Seconds, SECONDS.to_owned(), Physical::DOUBLE));
    columns.push((Column::Error, ERROR.to_owned(), Physical::BYTE_ARRAY));
    columns
}

/// A column's name: that of what it holds, with the kind if another column has it.
fn free(name: &str, kind: &str, columns: &[(Column, String, Physical)]) -> String {
    let is_taken = [SECONDS, ERROR].contains(&name) || columns.iter().any(|(_, other, _)| other == name);
    if is_taken { format!("{name} ({kind})") } else { name.to_owned() }
}

/// The contents of a file with these rows.
pub(crate) fn write(grid: &Grid, rows: &[Row]) -> Result<Vec<u8>> {
    let columns = columns(grid);
    let field = |(column, name, physical): &(Column, String, Physical)| {
        let optional = matches!(column, Column::Metric(_) | Column::Error);
        let text = (*physical == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let builder = Type::primitive_type_builder(name, *physical).with_logical_type(text);
        let repetition = if optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        builder.with_repetition(repetition).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>>>()?;
    let schema = Type::group_type_builder("row").with_fields(fields).build()?;
    let mut contents = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut contents, Arc::new(schema), Arc::default())?;
    let mut group = writer.next_row_group()?;
    for (column, _, physical) in &columns {
        let Some(mut to) = group.next_column()? else { break };
        write_column(&mut to, *column, *physical, rows)?;
        to.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(contents)
}

fn write_column(to: &mut SerializedColumnWriter, column: Column, physical: Physical, rows: &[Row]) -> Result<()> {
    let whole = |value: fn(&Row) -> u64| rows.iter().map(|row| value(row) as i64).collect::<Vec<_>>();
    match column {
        Column::Point => to.typed::<Int64Type>().write_batch(&whole(|row| row.point), None, None)?,
        Column::Repeat => to.typed::<Int64Type>().write_batch(&whole(|row| u64::from(row.repeat)), None, None)?,
        Column::Seed => to.typed::<Int64Type>().write_batch(&whole(|row| row.seed), None, None)?,
        Column::Seconds => {
            let values: Vec<f64> = rows.iter().map(|row| row.seconds).collect();
            to.typed::<DoubleType>().write_batch(&values, None, None)?
        }
        Column::Metric(index) => {
            let given: Vec<i16> = rows.iter().map(|row| i16::from(!row.metrics[index].is_nan())).collect();
            let values: Vec<f64> = rows.iter().map(|row| row.metrics[index]).filter(|value| !value.is_nan()).collect();
            to.typed::<DoubleType>().write_batch(&values, Some(&given), None)?
        }
        Column::Error => {
            let given: Vec<i16> = rows.iter().map(|row| i16::from(row.error.is_some())).collect();
            let values: Vec<ByteArray> = rows.iter().filter_map(|row| Some(row.error.as_deref()?.into())).collect();
            to.typed::<ByteArrayType>().write_batch(&values, Some(&given), None)?
        }
        Column::Setting(index) => {
            let values = rows.iter().map(|row| &row.values[index]);
            match physical {
                Physical::BYTE_ARRAY => {
                    let values: Vec<ByteArray> =
                        values.map(|value| value.as_str().unwrap_or_default().into()).collect();
                    to.typed::<ByteArrayType>().write_batch(&values, None, None)?
                }
                Physical::BOOLEAN => {
                    let values: Vec<bool> = values.map(|value| value.as_bool().unwrap_or_default()).collect();
                    to.typed::<BoolType>().write_batch(&values, None, None)?
                }
                _ => {
                    let values: Vec<f64> = values.map(number).collect();
                    to.typed::<DoubleType>().write_batch(&values, None, None)?
                }
            }
        }
    };
    Ok(())
}

/// A setting's number; `NaN` if it is none.
pub(crate) fn number(value: &Value) -> f64 {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64)).unwrap_or(f64::NAN)
}

/// Reads the rows of a file that this grid's sweep wrote.
pub(crate) fn read(file: File, grid: &Grid) -> Result<Vec<Row>> {
    let columns = columns(grid);
    let reader = SerializedFileReader::new(file)?;
    let mut rows = Vec::new();
    for record in reader.get_row_iter(None)? {
        let record = record?;
        let mut row = Row { metrics: vec![f64::NAN; grid.metrics.len()], ..Row::default() };
        let mut fields = record.get_column_iter();
        for (column, name, _) in &columns {
            let field = fields.next().filter(|(found, _)| *found == name).map(|(_, field)| field);
            match (column, field) {
                (Column::Point, Some(Field::Long(value))) => row.point = *value as u64,
                (Column::Repeat, Some(Field::Long(value))) => row.repeat = *value as u32,
                (Column::Seed, Some(Field::Long(value))) => row.seed = *value as u64,
                (Column::Setting(_), Some(Field::Double(value))) => row.values.push(Value::Float(*value)),
                (Column::Setting(_), Some(Field::Str(value))) => row.values.push(Value::String(value.clone())),
                (Column::Setting(_), Some(Field::Bool(value))) => row.values.push(Value::Boolean(*value)),
                (Column::Metric(index), Some(Field::Double(value))) => row.metrics[*index] = *value,
                (Column::Seconds, Some(Field::Double(value))) => row.seconds = *value,
                (Column::Error, Some(Field::Str(value))) => row.error = Some(value.clone()),
                (Column::Metric(_) | Column::Error, Some(Field::Null)) => {}
                _ => return Err(ParquetError::General(format!("column `{name}` is missing, or of another kind"))),
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
