package trident.kept;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.SimpleFunctionRegistryBase;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.QueryExecution$;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.FileScanRDD;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.CallSite;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Range$;
import scala.collection.immutable.Seq$;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/**
 * A physical plan that runs again for each batch: analysed, optimised, planned and compiled once.
 *
 * <p>Its sources are {@link SlotRDD}s, so that each run has rows of its own. A plan is refused where a second run could
 * give anything else than a plan made anew would: where it shuffles or broadcasts (Spark would use the first run's
 * files again), reads anything but slots, or holds an expression that Spark evaluates when it plans.
 */
public final class KeptPlan {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final CallSite SITE = new CallSite("kept plan", "trident.kept.KeptPlan");

  /** Operators that compute each of their partitions from those of their children, and keep nothing between runs. */
  private static final Set<String> OPERATORS =
      Set.of(
          "WholeStageCodegenExec", "InputAdapter", "RDDScanExec", "LocalTableScanExec", "RangeExec", "ProjectExec", "FilterExec",
          "GenerateExec", "ExpandExec", "UnionExec", "CoalesceExec", "SortExec", "HashAggregateExec",
          "ObjectHashAggregateExec", "SortAggregateExec", "WindowExec", "WindowGroupLimitExec", "LocalLimitExec",
          "GlobalLimitExec", "SortMergeJoinExec", "ShuffledHashJoinExec", "MapInArrowExec", "ArrowEvalPythonExec",
          "BatchEvalPythonExec", "FlatMapGroupsInArrowExec", "FlatMapGroupsInPandasExec");

  private final SparkSession session;
  private final SparkPlan plan;
  private final StructType schema;
  private final Object planned;
  private final String refusal;

  private KeptPlan(Dataset<Row> frame, Object session) {
    this.session = frame.sparkSession();
    planned = session;
    QueryExecution execution = frame.queryExecution();
    schema = frame.schema();
    String found = refusalOf(execution.analyzed());
    SparkPlan made = null;
    if (found == null) {
      // Not adaptive: without an exchange there is nothing to adapt to. Operators take the session of their thread.
      made =
          this.session.withActive(
              () ->
                  QueryExecution$.MODULE$.prepareForExecution(
                      QueryExecution$.MODULE$.preparations(this.session, Option.empty(), false),
                      execution.sparkPlan()));
      found = refusalOf(made);
    }
    plan = made;
    refusal = found;
  }

  /** A frame whose rows are an Arrow stream, in base 64, in a local property of the job. */
  public static Dataset<Row> rows(SparkSession session, String property, String schema) {
    return slot(session, new SlotRDD(session.sparkContext(), property, null, false, null), schema);
  }

  /** A frame of one integer, with a row and a Spark partition for each of so many shards: their numbers. */
  public static Dataset<Row> shards(SparkSession session, int count, String schema) {
    return scanned(session, new ShardsRDD(session.sparkContext(), count), schema, new UnknownPartitioning(count));
  }

  /**
   * A frame whose rows are those of the files that a local property of the job lists.
   *
   * @param template reads at least one such file, and nothing else
   */
  public static Dataset<Row> files(Dataset<Row> template, String property, String schema) {
    SparkPlan scanned = template.queryExecution().sparkPlan();
    while (!(scanned instanceof FileSourceScanExec)) {
      scanned = (SparkPlan) scanned.children().head();
    }
    FileScanRDD scan = (FileScanRDD) ((FileSourceScanExec) scanned).inputRDD();
    if (scanned.output().size() != structOf(schema).length()) {
      throw new IllegalStateException("the template gives other rows than the slot: " + scanned.output());
    }
    SparkSession session = template.sparkSession();
    SlotRDD rows =
        new SlotRDD(
            session.sparkContext(),
            property,
            scan,
            scanned.supportsColumnar(),
            scan.filePartitions().head().files()[0].toPath().toUri());
    return slot(session, rows, schema);
  }

  private static Dataset<Row> slot(SparkSession session, SlotRDD rows, String schema) {
    return scanned(session, rows, schema, SinglePartition$.MODULE$);
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  private static Dataset<Row> scanned(
      SparkSession session, RDD<InternalRow> rows, String schema, Partitioning partitioning) {
    LogicalRDD relation =
        new LogicalRDD(
            (scala.collection.immutable.Seq) DataTypeUtils$.MODULE$.toAttributes(structOf(schema)),
            rows,
            partitioning,
            (scala.collection.immutable.Seq) Seq$.MODULE$.empty(),
            false,
            Option.empty(),
            session,
            Option.empty(),
            Option.empty());
    return Dataset$.MODULE$.ofRows(session, relation);
  }

  private static StructType structOf(String json) {
    return (StructType) DataType.fromJson(json);
  }

  /**
   * What a session's plans depend on beside their text, to be compared: its settings, and what it takes names for.
   *
   * <p>Functions are compared by what makes them: one that is registered again under its name is another one.
   */
  public static Object stateOf(SparkSession session) {
    SessionState state = session.sessionState();
    Object functions;
    synchronized (state.functionRegistry()) {
      functions = ((SimpleFunctionRegistryBase<?>) state.functionRegistry()).functionBuilders().clone();
    }
    return List.of(state.conf().getAllConfs(), state.catalogManager().currentPathString(), functions);
  }

  /**
   * Plans a frame over slots.
   *
   * @param state of its session, as it was before the frame was made
   */
  public static KeptPlan of(Dataset<Row> frame, Object state) {
    return new KeptPlan(frame, state);
  }

  /** Why it cannot be kept; null: it can. */
  public String refusal() {
    return refusal;
  }

  /**
   * Runs it once, as one job in the calling thread's job group. May be called from several threads at once.
   *
   * @param json the local properties that name the rows of this run, for its job alone
   * @return for each Spark partition the list of its rows, as JSON; null where the session's state is another one than when it was planned
   */
  public String run(String json) throws JsonProcessingException {
    Map<String, String> properties = JSON.readValue(json, new TypeReference<Map<String, String>>() {});
    if (!planned.equals(stateOf(session))) {
      return null;
    }
    SparkContext context = session.sparkContext();
    context.assertNotStopped();
    try {
      properties.forEach(context::setLocalProperty);
      return session.withActive(() -> SQLExecution$.MODULE$.withSQLConfPropagated(session, () -> reports(context)));
    } finally {
      properties.keySet().forEach(name -> context.setLocalProperty(name, null));
    }
  }

  /**
   * Not {@code RDD.collect}: it looks for what its closures hold in their byte code, each time anew, which takes longer
   * than all else that Spark does for a small job. The function here is no closure and holds three values.
   */
  private String reports(SparkContext context) {
    RDD<InternalRow> rows = plan.execute(); // the same one each time
    int partitions = rows.getNumPartitions();
    String[] reports = new String[partitions];
    context
        .dagScheduler()
        .runJob(
            rows,
            new Reporter(schema),
            Range$.MODULE$.apply(0, partitions).toSeq(),
            SITE,
            new Results(reports),
            context.getLocalProperties());
    if (context.progressBar().isDefined()) {
      context.progressBar().get().finishAll();
    }
    return "[" + String.join(",", reports) + "]";
  }

  /** Runs in a task: the rows of one Spark partition as JSON. */
  private static final class Reporter extends AbstractFunction2<TaskContext, Iterator<InternalRow>, String>
      implements Serializable {
    private final boolean[] texts;

    Reporter(StructType schema) {
      StructField[] fields = schema.fields();
      texts = new boolean[fields.length];
      for (int i = 0; i < fields.length; i++) {
        DataType type = fields[i].dataType();
        texts[i] = type instanceof StringType;
        if (!texts[i] && type != LongType$.MODULE$) {
          throw new IllegalStateException("a column of type " + type.simpleString() + " in a report");
        }
      }
    }

    @Override
    public String apply(TaskContext task, Iterator<InternalRow> rows) {
      List<Object[]> found = new ArrayList<>();
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        Object[] values = new Object[texts.length];
        for (int i = 0; i < values.length; i++) {
          if (!row.isNullAt(i)) {
            values[i] = texts[i] ? row.getUTF8String(i).toString() : (Object) row.getLong(i);
          }
        }
        found.add(values);
      }
      try {
        return JSON.writeValueAsString(found);
      } catch (JsonProcessingException error) {
        throw new IllegalStateException(error);
      }
    }
  }

  /** Takes what each task has reported. */
  private static final class Results extends AbstractFunction2<Object, String, BoxedUnit> {
    private final String[] reports;

    Results(String[] reports) {
      this.reports = reports;
    }

    @Override
    public BoxedUnit apply(Object partition, String report) {
      reports[(Integer) partition] = report;
      return BoxedUnit.UNIT;
    }
  }

  // --- what cannot be kept ---------------------------------------------------------------

  private static String refusalOf(LogicalPlan plan) {
    if (plan.isStreaming() || !plan.subqueriesAll().isEmpty()) {
      return "a subquery";
    }
    for (Iterator<Expression> each = plan.expressions().iterator(); each.hasNext(); ) {
      String found = refusalOf(each.next());
      if (found != null) {
        return found;
      }
    }
    for (Iterator<LogicalPlan> each = plan.children().iterator(); each.hasNext(); ) {
      String found = refusalOf(each.next());
      if (found != null) {
        return found;
      }
    }
    return null;
  }

  private static String refusalOf(Expression expression) {
    if (!expression.deterministic()) {
      return "not deterministic: " + expression.prettyName();
    }
    if (expression.containsPattern(TreePattern$.MODULE$.CURRENT_LIKE())) {
      return "an expression gives the current time, date, user or database";
    }
    if (expression.containsPattern(TreePattern$.MODULE$.VARIABLE_REFERENCE())) {
      return "a variable of the session";
    }
    boolean ofTime = isTime(expression.dataType());
    if (expression instanceof Literal && ofTime && ((Literal) expression).value() != null) {
      return "a literal time or date, which may be the time of planning (TIMESTAMP'now')";
    }
    if (expression instanceof Cast && ofTime && ((Cast) expression).child().foldable()) {
      return "a text that is cast to a time or date when planning, which may be 'now'";
    }
    if (expression instanceof RuntimeReplaceable) { // its children need not be what is computed: to_timestamp('now')
      String found = refusalOf(((RuntimeReplaceable) expression).replacement());
      if (found != null) {
        return found;
      }
    }
    for (Iterator<Expression> each = expression.children().iterator(); each.hasNext(); ) {
      String found = refusalOf(each.next());
      if (found != null) {
        return found;
      }
    }
    return null;
  }

  private static boolean isTime(DataType type) {
    String text = type.sql();
    return text.contains("TIME") || text.contains("DATE");
  }

  private static String refusalOf(SparkPlan plan) {
    String name = plan.getClass().getSimpleName();
    if (!OPERATORS.contains(name)) {
      return "Spark's operator " + plan.nodeName();
    }
    if (plan instanceof RDDScanExec) {
      RDD<?> rows = ((RDDScanExec) plan).rdd();
      if (!(rows instanceof SlotRDD || rows instanceof ShardsRDD)) {
        return "rows that are the same in each batch";
      }
    }
    if (!plan.subqueries().isEmpty()) {
      return "a subquery";
    }
    for (Iterator<SparkPlan> each = plan.children().iterator(); each.hasNext(); ) {
      String found = refusalOf(each.next());
      if (found != null) {
        return found;
      }
    }
    return null;
  }
}
